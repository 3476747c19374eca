"""`Fit`: the answer to the one question, does it fit?"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from memfit.sizes import Size


@dataclass(frozen=True)
class Fit:
    """Whether a step fits into some memory; true in an `if` where it does.

    The verdict takes less time than `needed`, `margin` and `why`, which are computed when they are read.

    Attributes:
        fits: The verdict: `needed` is not more than `memory`.
        memory: What was asked about.
        peak: The predicted peak.
        find_needed: Gives `needed`.
    """

    fits: bool
    memory: Size
    peak: Size
    find_needed: Callable[[], Size] = field(repr=False, compare=False)

    def __bool__(self) -> bool:
        return self.fits

    @cached_property
    def needed(self) -> Size:
        """The memory to run it in: a question about this much is answered with yes."""
        return self.find_needed()

    @property
    def margin(self) -> Size:
        """The bytes kept free above the peak."""
        return Size(self.needed - self.peak)

    @property
    def why(self) -> str:
        """The verdict as a sentence."""
        relation = "<=" if self.fits else ">"
        return f"peak {self.peak} + {self.margin} margin = {self.needed} {relation} {self.memory}"
