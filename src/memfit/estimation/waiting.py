"""What the input pipeline of `fit` holds in the memory that the step needs: in an arena much, on a GPU nothing."""

from dataclasses import dataclass
from typing import Any

from memfit.compat import keras_data
from memfit.estimation.recording.specs import Spec

# Keras's pipeline of arrays holds a copy of them and, measured at batches of 3 and 6 MiB, three to six batches. So
# many are also taken to wait where a pipeline does not tell what it holds.
_BATCHES = 5


@dataclass(frozen=True)
class Waiting:
    """Samples that wait beside a step.

    Attributes:
        held: Bytes that do not depend on the batch: the arrays that Keras has a copy of, a pipeline's buffers.
        sample: Bytes of one sample.
        batches: How many batches wait.
    """

    held: int = 0
    sample: float = 0
    batches: int = _BATCHES

    def at(self, batch_size: int) -> int:
        """Returns the bytes that wait beside a step of a batch size."""
        return self.held + int(self.batches * self.sample * batch_size)


NOTHING_WAITS = Waiting()


def read_waiting(spec: Spec, data: Any) -> Waiting:
    """Returns what waits beside steps on this machine's CPU, where training has its memory in common with it."""
    return waiting_of(data, held_bytes(spec.batch(1)))


def waiting_of(data: Any, sample: int) -> Waiting:
    """Returns what waits of some data: what the stages of a pipeline hold, or what Keras holds of arrays.

    Args:
        data: What is trained with.
        sample: Bytes of one sample of it.
    """
    if keras_data.is_dataset(data):
        from memfit.data.linting.holding import hold

        held = hold(data)
        if held is not None:
            return Waiting(held.fixed, held.per_sample, 1)
    return Waiting(held_bytes(data), sample)


def held_bytes(batch: Any) -> int:
    """Returns the bytes of the arrays in a nested structure; a dataset has none of its own."""
    if isinstance(batch, dict):
        return sum(map(held_bytes, batch.values()))
    if isinstance(batch, tuple | list):
        return sum(map(held_bytes, batch))
    return int(getattr(batch, "nbytes", 0))
