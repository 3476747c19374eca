"""The job a plan is made for: what every lever looks at."""

from dataclasses import dataclass
from typing import Any, Literal

from memfit.planning.fidelity import Fidelity
from memfit.sizes import Size


@dataclass(frozen=True)
class Job:
    """A training to be fitted.

    Attributes:
        model: The compiled Keras model.
        batch_size: The batch of one optimizer update, or "max" for as many samples as fit.
        memory: Bytes it may take on its device.
        allow: The farthest that a lever may go.
        data: An example of the training data, or None.
        validation_batch_size: Samples in a validation batch; None where there is no validation.
        device: The GPU it is planned for; None for this machine.
    """

    model: Any
    batch_size: int | Literal["max"]
    memory: Size
    allow: Fidelity
    data: Any = None
    validation_batch_size: int | None = None
    device: str | None = None
