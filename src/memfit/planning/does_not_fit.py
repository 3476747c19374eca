"""The error of a job that no allowed plan makes fit."""

from typing import Any

from memfit.errors import MemfitError
from memfit.planning.fidelity import Fidelity
from memfit.planning.plan import Plan
from memfit.sizes import Size


class DoesNotFit(MemfitError, ValueError):
    """No allowed plan fits.

    Attributes:
        smallest_memory: The least memory with which an allowed plan would fit this batch.
        largest_batch: The largest batch for which an allowed plan fits this memory; 0 for none.
        fidelity: The gentlest fidelity beyond the allowed one that would make this batch fit, or None.
        closest: The allowed plan that takes least, with every lever's reason; `fit` does not follow it. None where
            there is none.
    """

    def __init__(
        self,
        message: str,
        smallest_memory: Size,
        largest_batch: int,
        fidelity: Fidelity | None,
        closest: Plan | None = None,
    ) -> None:
        super().__init__(message)
        self.smallest_memory = smallest_memory
        self.largest_batch = largest_batch
        self.fidelity = fidelity
        self.closest = closest

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.smallest_memory, self.largest_batch, self.fidelity, self.closest)
