"""What the input pipeline of `fit` holds in the memory that the step needs: in an arena much, on a GPU nothing."""

from dataclasses import dataclass
from typing import Any

from memfit.estimation.recording.specs import Spec

# Keras's pipeline of arrays holds a copy of them and, measured at batches of 3 and 6 MiB, three to six batches.
_BATCHES = 5


@dataclass(frozen=True)
class Waiting:
    """Samples that wait beside a step.

    Attributes:
        held: Bytes of the arrays that the pipeline has a copy of.
        sample: Bytes of one sample.
    """

    held: int = 0
    sample: int = 0

    def at(self, batch_size: int) -> int:
        """Returns the bytes that wait beside a step of a batch size."""
        return self.held + _BATCHES * self.sample * batch_size


NOTHING_WAITS = Waiting()


def read_waiting(spec: Spec, data: Any) -> Waiting:
    """Returns what waits beside steps on this machine's CPU, where training has its memory in common with it."""
    return Waiting(held_bytes(data), held_bytes(spec.batch(1)))


def held_bytes(batch: Any) -> int:
    """Returns the bytes of the arrays in a nested structure; a dataset has none of its own."""
    if isinstance(batch, dict):
        return sum(map(held_bytes, batch.values()))
    if isinstance(batch, tuple | list):
        return sum(map(held_bytes, batch))
    return int(getattr(batch, "nbytes", 0))
