"""What an optimizer keeps beside the weights, seen by building it on small stand-ins for them."""

import inspect
import math
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from memfit.errors import CannotTell, in_one_line
from memfit.optimizers.adam8bit import Adam8bit, count_saved, is_large
from memfit.sizes import Size

# The dimensions of a stand-in have different sizes: a slot's dimensions are recognised by them.
_SIZES = (2, 3, 5, 7, 11, 13, 17)


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
    if issubclass(optimizer if inspect.isclass(optimizer) else type(optimizer), Adam8bit):
        # A small stand-in shows only what it keeps for small weights.
        large = filter(is_large, weights)
        total -= sum(count_saved(weight.shape, tf.as_dtype(weight.dtype).size) for weight in large)
    return Size(total)


def _build_slots(optimizer: Any, rank: int, dtype: str, name: str) -> list[tuple[tuple[int, ...], int]]:
    """Returns the slots of one weight: which of the weight's dimensions each has, and the bytes of a value."""
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
