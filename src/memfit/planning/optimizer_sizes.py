"""What an optimizer keeps beside the weights, seen by building it on small stand-ins for them."""

import inspect
import math
from collections.abc import Iterable
from typing import Any

from memfit.errors import CannotTell, in_one_line
from memfit.sizes import Size

# The dimensions of a stand-in have different sizes: a slot's dimensions are recognised by them.
_SIZES = (2, 3, 5, 7, 11, 13, 17)


def list_optimizers() -> dict[str, Any]:
    """Returns Keras's optimizers by name, without those that need another optimizer to be made."""
    import keras

    return {
        name: value
        for name, value in vars(keras.optimizers).items()
        if inspect.isclass(value)
        and issubclass(value, keras.optimizers.Optimizer)
        and all(
            parameter.default is not parameter.empty or parameter.kind is parameter.VAR_KEYWORD
            for parameter in inspect.signature(value).parameters.values()
        )
    }


def kept_by(optimizer: Any, weights: Iterable[Any]) -> Size:
    """Returns the bytes that an optimizer keeps for weights: moments, velocities, averages, accumulators.

    The few bytes that do not grow with the weights (its step counter, its learning rate) are not counted. Copies
    are built; the optimizer itself stays as it is.

    Args:
        optimizer: An optimizer, for its settings, or a class of optimizers, for its defaults.
        weights: The trained Keras variables.

    Raises:
        CannotTell: If a custom optimizer cannot be copied by its `get_config`.

    Example:
        >>> import keras
        >>> kept_by(keras.optimizers.Lion, [keras.Variable(keras.ops.zeros((1024, 512)))])
        Size('2.0 MiB')
    """
    slots: dict[tuple[int, str, str], list[tuple[tuple[int, ...], int]]] = {}
    weights, total = list(weights), 0
    for weight in weights:
        # Muon keeps less for a matrix than for an embedding, which it tells by the name.
        kind = (len(weight.shape), str(weight.dtype), weight.name)
        if kind not in slots:
            slots[kind] = _build_slots(optimizer, *kind)
        for dimensions, itemsize in slots[kind]:
            total += itemsize * math.prod(weight.shape[dimension] for dimension in dimensions)
    return Size(total - (saved_in_8_bits(weights) if _has_8_bits(optimizer) else 0))


def saved_in_8_bits(weights: Iterable[Any]) -> Size:
    """Returns the bytes that moments in 8 bits take less than Adam's."""
    import tensorflow as tf

    from memfit.optimizers.adam8bit import count_saved, is_large

    return Size(
        sum(
            count_saved(weight.shape, tf.as_dtype(weight.dtype).size)
            for weight in weights
            if is_large(weight)
        )
    )


def _has_8_bits(optimizer: Any) -> bool:
    """Whether an optimizer is an Adam8bit, of which a small stand-in shows only what it keeps for small weights."""
    from memfit.optimizers.adam8bit import Adam8bit

    return issubclass(optimizer if inspect.isclass(optimizer) else type(optimizer), Adam8bit)


def _build_slots(optimizer: Any, rank: int, dtype: str, name: str) -> list[tuple[tuple[int, ...], int]]:
    """Returns the slots of one weight: which of the weight's dimensions each has, and the bytes of a value."""
    import keras
    import tensorflow as tf

    sizes = _SIZES[:rank]
    copy = _copy(optimizer)
    copy.build([keras.Variable("zeros", sizes, dtype, name=name)])
    return [
        (tuple(sizes.index(size) for size in slot.shape), tf.as_dtype(slot.dtype).size)
        for slot in copy.variables
        if len(slot.shape)
    ]


def _copy(optimizer: Any) -> Any:
    is_class = inspect.isclass(optimizer)
    try:
        # A class gets a name, because Keras counts the unnamed ones.
        return optimizer(name="copy") if is_class else type(optimizer).from_config(optimizer.get_config())
    except Exception as error:  # whatever the constructor of a custom optimizer raises
        raise CannotTell(
            f"{type(optimizer).__name__} cannot be copied to count its state ({in_one_line(error)})",
            remedy="Give it a get_config() with the arguments of its constructor",
        ) from error
