"""Steps that are not Keras's own: how the copied model gets one, and what it runs with."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from memfit.estimation.recording.specs import Batch


class Around(NamedTuple):
    """What there is around a step.

    Attributes:
        before: What is done before each step.
        after: What is done after each.
        variables: Gives the variables that this keeps, once a step has run.
        nursery: Whether gaps are made for what is small, before the first step.
    """

    before: Callable[[], None]
    after: Callable[[], None]
    variables: Callable[[], Sequence[Any]]
    nursery: bool

    def run(self, step: Callable[[Batch], Any]) -> Callable[[Batch], Any]:
        """Returns the step as it is run."""

        def whole(data: Batch) -> Any:
            self.before()
            logs = step(data)
            self.after()
            return logs

        return whole


# Gives the copied model another step, and says what there is around it.
Prepare = Callable[[Any], Around | None]
