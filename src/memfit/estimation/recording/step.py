"""What the recorder records: a training step that can be traced and run."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from memfit.estimation.recording.specs import Batch, TensorSpecs

# The name scope of ops that read a step's samples from the host.
READ = "read_from_host"
# That of ops that join what micro-batches have left for the update: from there on a step is about the whole batch.
JOINED = "joined_from_parts"
# A tf.ConcreteFunction; TensorFlow is not imported for its name.
Traced = Any
Tensor = Any
Model = Any


class Step(Protocol):
    """One way to compute a step of a model.

    Whatever it keeps from step to step, it allocates when it is built and traced, which the recorder watches.

    Attributes:
        parts: In how many equal parts it computes a batch.
        any_batch: Whether it is traced once for batches of any size, as `fit` runs it, and not for each size.
        is_given_samples: Whether a batch's arrays are given to it as tensors; otherwise it reads them itself.
    """

    parts: int
    any_batch: bool
    is_given_samples: bool

    def trace(self, spec: TensorSpecs) -> Traced | None:
        """Traces it for data of these shapes without running it; returns None where it runs eagerly."""

    def run(self, data: Batch, spec: TensorSpecs) -> Any:
        """Runs one whole step on a batch and returns the logs; `spec` is what it was traced for."""

    def variables(self) -> Sequence[Tensor]:
        """Returns the variables it keeps beside the model's, the metrics' and the optimizer's."""


# Builds the step to record for the model's copy in the recorder's process; it has to be picklable.
Build = Callable[[Model], Step]
