"""What is said when no allowed plan fits: the memory, the batch or the fidelity that would do."""

from typing import Any

from memfit.errors import MemfitError
from memfit.planning.fidelity import Fidelity
from memfit.sizes import Size


class DoesNotFit(MemfitError, ValueError):
    """No allowed plan fits.

    Attributes:
        smallest_memory: The least memory with which an allowed plan would fit this batch.
        largest_batch: The largest batch for which an allowed plan fits this memory; 0 for none.
        fidelity: The gentlest fidelity beyond the allowed one that would make this batch fit, or None.
    """

    def __init__(
        self, message: str, smallest_memory: Size, largest_batch: int, fidelity: Fidelity | None
    ) -> None:
        super().__init__(message)
        self.smallest_memory = smallest_memory
        self.largest_batch = largest_batch
        self.fidelity = fidelity

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.smallest_memory, self.largest_batch, self.fidelity)


def refusal(
    batch_size: int,
    memory: Size,
    allow: Fidelity,
    smallest: Size,
    largest: int,
    fidelity: Fidelity | None,
    fixed: str | None = None,
) -> DoesNotFit:
    """Tells the rule, what was received and the remedies as one error; `fixed` is why a step cannot be changed."""
    changes = f" with {allow} changes" if fixed is None else f", and its step cannot be changed: {fixed}"
    parts = [
        f"Batch {batch_size} does not fit into {memory}{changes}.",
        f"The smallest memory that would do is {smallest};",
        f"the largest batch that fits {memory} is {largest}." if largest else f"no batch fits {memory}.",
    ]
    if fidelity is not None:
        parts.append(f'With allow="{fidelity}" this batch would fit.')
    return DoesNotFit(" ".join(parts), smallest, largest, fidelity)
