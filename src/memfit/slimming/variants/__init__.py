"""The variants, one file each, and their list."""

from memfit.errors import InvalidInput
from memfit.slimming.variants.combination import Combination
from memfit.slimming.variants.frozen import Frozen
from memfit.slimming.variants.lora import LoRA
from memfit.slimming.variants.low_rank import LowRank
from memfit.slimming.variants.mixed_precision import MixedPrecision
from memfit.slimming.variants.narrow import Narrow
from memfit.slimming.variants.quantised import Quantised
from memfit.slimming.variants.separable import Separable
from memfit.slimming.variants.smaller_input import SmallerInput
from memfit.slimming.variants.variant import Variant


def list_variants(device: str | None = None) -> tuple[Variant, ...]:
    """Returns every variant; a new one is a file of this package and a line here.

    Args:
        device: Name of the GPU they are for; None for this machine's.
    """
    return (
        Separable(),
        Narrow(),
        LowRank(),
        SmallerInput(),
        MixedPrecision(device),
        Frozen(),
        LoRA(),
        Quantised(),
    )


def find_variant(name: str, device: str | None = None) -> Variant:
    """Returns a variant by its name, or the combination of several: "narrow + mixed precision".

    Raises:
        InvalidInput: If there is none of that name.
    """
    known = {variant.name.lower(): variant for variant in list_variants(device)}
    parts = [part.strip().lower().replace("_", " ") for part in str(name).split("+")]
    if len(set(parts)) != len(parts) or not set(parts) <= set(known):
        names = ", ".join(repr(variant.name) for variant in known.values())
        raise InvalidInput(
            "There is no such variant",
            received=name,
            remedy=f"The variants are {names}; several: 'narrow + mixed precision'",
        )
    if len(parts) == 1:
        return known[parts[0]]
    return Combination(tuple(known[part] for part in parts))
