"""Steps that are not Keras's own: how the copied model gets one, and what it runs in."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from memfit.estimation.specs import Batch


class Around(NamedTuple):
    """What a step runs in.

    Attributes:
        enter: Gives a context for each step.
        variables: Gives the variables that it keeps, once a step has run.
    """

    enter: Callable[[], AbstractContextManager[None]]
    variables: Callable[[], Sequence[Any]]

    def run(self, step: Callable[[Batch], Any]) -> Callable[[Batch], Any]:
        """Returns the step as it is run."""

        def inside(data: Batch) -> Any:
            with self.enter():
                return step(data)

        return inside


# Gives the copied model another step, and says what that runs in.
Prepare = Callable[[Any], Around | None]
