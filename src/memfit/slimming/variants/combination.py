"""Several variants, one behind the other."""

import math
from typing import Any

from memfit.slimming.variants.variant import Made, Variant


class Combination(Variant):
    """Makes one variant of what another has made; each takes its own default amount.

    Args:
        parts: The variants, the first to be made first.
    """

    meaning = "not given: each part takes its own"
    default, least, most = 1, 1, 1

    def __init__(self, parts: tuple[Variant, ...]) -> None:
        self.parts = parts
        self.name = " + ".join(part.name for part in parts)  # type: ignore[misc]
        self.resizes = any(part.resizes for part in parts)  # type: ignore[misc]

    def why_not(self, model: Any) -> str | None:
        """Says what the first part that cannot be made says."""
        reasons = (part.why_not(model) for part in self.parts)
        return next((reason for reason in reasons if reason is not None), None)

    def make(self, model: Any, amount: float) -> Made:
        """Makes them in a row."""
        made = Made(model)
        for part in self.parts:
            new = part.make(made.model, part.default)
            energies = [each for each in (made.energy, new.energy) if each is not None]
            energy = math.prod(energies) if energies else None
            made = Made(new.model, (*made.notes, *new.notes), energy, new.trains)
        return made

    def label(self, amount: float) -> str:
        """Names its parts."""
        return " + ".join(part.label(part.default) for part in self.parts)
