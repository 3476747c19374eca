"""Smaller input: the same network on smaller images."""

from typing import Any

from memfit.compat.keras_layers import functional_of
from memfit.slimming.rebuilding import CannotSlim, compile_like, rebuild, why_not_rebuild
from memfit.slimming.variants.variant import Made, Variant

# Networks halve their images up to five times; sides that can be halved as often leave no odd rows.
_LARGEST_STEP = 32
# How far from the size that was asked for a side may be rounded.
_ROUNDED = 0.1


class SmallerInput(Variant):
    """Builds the network for images of a smaller height and width, with all of its weights."""

    name = "smaller input"
    meaning = "the fraction of height and width that is kept"
    default, least, most = 0.75, 0.1, 0.95
    resizes = True

    def why_not(self, model: Any) -> str | None:
        """Says that there is no image, or that its size is open already."""
        if (reason := why_not_rebuild(model)) is not None:
            return reason
        images = [tensor for tensor in functional_of(model).inputs if len(tensor.shape) == 4]
        if not images:
            return "none of its inputs is an image"
        if any(side is None for tensor in images for side in tensor.shape[1:3]):
            return "the size of its input is open: give it smaller images"
        return None

    def make(self, model: Any, amount: float) -> Made:
        """Builds it for smaller images; refused where a weight depends on their size."""

        def resize(tensor: Any) -> Any:
            shape = tuple(tensor.shape)
            if len(shape) != 4:
                return shape
            return (shape[0], scale(shape[1], amount), scale(shape[2], amount), shape[3])

        rebuilt = rebuild(model, lambda layer: None, resize)
        for old, new in rebuilt.pairs:
            if [w.shape for w in old.weights] != [w.shape for w in new.weights]:
                raise CannotSlim(
                    f"the size of the input fixes the weights of {old.name}, as Flatten before Dense does"
                )
        rebuilt.carry_weights()
        before, after = (tuple(functional_of(each).inputs[0].shape[1:3]) for each in (model, rebuilt.model))
        notes = [f"images of {after[0]}x{after[1]} for {before[0]}x{before[1]}: you have to resize them"]
        pairs = zip(functional_of(model).outputs, functional_of(rebuilt.model).outputs, strict=True)
        if any(old.shape != new.shape for old, new in pairs):
            notes.append("its outputs are smaller too, and so must the targets be")
        return Made(compile_like(rebuilt.model, model), tuple(notes))


def scale(side: int, amount: float) -> int:
    """Returns a smaller side that can be halved as often as the given one, where that is near to what is asked for.

    Example:
        >>> scale(224, 0.75), scale(128, 0.75), scale(28, 0.5)
        (160, 96, 14)
    """
    wanted = amount * side
    step = _LARGEST_STEP
    while step > 1:
        rounded = step * round(wanted / step)
        if side % step == 0 and 0 < rounded < side and abs(rounded - wanted) <= _ROUNDED * wanted:
            return rounded
        step //= 2
    return max(1, round(wanted))
