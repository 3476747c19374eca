"""Steps that are not Keras's own: how the copied model gets one, and what it runs with."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from memfit.estimation.specs import Batch


class Around(NamedTuple):
    """What there is around a step.

    Attributes:
        before: What is done before each step.
        variables: Gives the variables that this keeps, once a step has run.
    """

    before: Callable[[], None]
    variables: Callable[[], Sequence[Any]]

    def run(self, step: Callable[[Batch], Any]) -> Callable[[Batch], Any]:
        """Returns the step as it is run."""

        def after_that(data: Batch) -> Any:
            self.before()
            return step(data)

        return after_that


# Gives the copied model another step, and says what there is around it.
Prepare = Callable[[Any], Around | None]
