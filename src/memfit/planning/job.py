"""The job a plan is made for: what every lever looks at."""

from dataclasses import dataclass
from typing import Any

from memfit.budgets.size import Size
from memfit.planning.fidelity import Fidelity


@dataclass(frozen=True)
class Job:
    """A training to be fitted.

    Attributes:
        model: The compiled Keras model.
        batch_size: The batch of one optimizer update.
        memory: Bytes it may take on its device.
        allow: The farthest that a lever may go.
        no_segments: Why nothing can be rematerialised; None where it can, or where nobody asked.
    """

    model: Any
    batch_size: int
    memory: Size
    allow: Fidelity
    no_segments: str | None = None
