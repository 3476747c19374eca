"""Adam whose moments take one byte each."""

import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from memfit.compat.keras_optimizers import slot_number
from memfit.errors import InvalidInput
from memfit.optimizers.blocks import (
    BLOCK,
    NEAREST,
    count_blocks,
    decode_even,
    decode_squares,
    encode_even,
    encode_squares,
    from_blocks,
    in_parts,
    to_blocks,
    walking,
)

# Smaller variables keep float32 moments, as in Dettmers et al.: biases and norms are sensitive, and cost
# nothing.
SMALLEST = 4096
# The lists of an optimizer's variables, with None for a variable whose moments are float32. Of the second
# moment the root is kept, and of the first its ratio to the root, which is what moves a weight: both are
# rounded where it matters.
LISTS = ("ratio_codes", "ratio_scales", "root_codes", "root_scales")
# What an update computes for each block: by how much the weights move, and what is kept.
_RESULTS = ((tf.float32, BLOCK), (tf.int8, BLOCK), (tf.float32, 1), (tf.uint8, BLOCK), (tf.float32, 1))


@keras.saving.register_keras_serializable(package="memfit")
class Adam8bit(keras.optimizers.Adam):
    """Adam with moments of 8 bits: a quarter of Adam's state.

    Both moments of a variable of at least 4096 values are kept as a byte for each value and a float32 scale
    for each 256 of them: the root of the second moment, and the ratio of the first to it. An update reads
    those of one variable as float32, computes as Adam does, moves the variable by what came out, and then
    rounds them again. Smaller variables have Adam's own update. Sparse gradients are made dense, as Keras's
    Adam makes them.

    Args:
        learning_rate: A float, a `LearningRateSchedule`, or a callable. Defaults to 0.001.
        beta_1: The decay of the first moment. Defaults to 0.9.
        beta_2: The decay of the second moment. Defaults to 0.999.
        epsilon: A small constant against division by zero. Defaults to 1e-7.
        amsgrad: Must be False: the largest second moment of all steps is not kept.
        **kwargs: What all optimizers of Keras take: `weight_decay`, `clipnorm`, `use_ema`, ...

    Raises:
        InvalidInput: If `amsgrad` is True.

    Example:
        >>> import keras, memfit
        >>> model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(128)])
        >>> model.compile(memfit.optimizers.Adam8bit(1e-3), "mse")
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        **kwargs: Any,
    ) -> None:
        if amsgrad:
            raise InvalidInput(
                "Adam8bit has no AMSGrad: it does not keep the largest second moments",
                received="amsgrad=True",
                remedy="Use keras.optimizers.Adam(amsgrad=True)",
            )
        super().__init__(learning_rate, beta_1, beta_2, epsilon, **kwargs)

    def build(self, var_list: Any) -> None:
        """Makes the moments."""
        if self.built:
            return
        super().build(var_list)
        add_codes(self, var_list, self.add_variable)

    def add_variable_from_reference(
        self, reference_variable: Any, name: str | None = None, initializer: Any = "zeros"
    ) -> Any:
        """Makes a variable like another one; of large ones no float32 moment."""
        if name in ("momentum", "velocity") and is_large(reference_variable):
            return None
        return super().add_variable_from_reference(reference_variable, name=name, initializer=initializer)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates a variable and its moments."""
        update_in_8_bits(self, gradient, variable, learning_rate)


def is_large(variable: Any) -> bool:
    """Whether the moments of a variable are kept in 8 bits."""
    return math.prod(variable.shape) >= SMALLEST and not getattr(variable, "overwrite_with_gradient", False)


def count_saved(shape: Any, itemsize: int) -> int:
    """Returns the bytes that a large variable's moments take less than Adam's."""
    return 2 * math.prod(shape) * itemsize - count_blocks(shape) * 2 * (BLOCK + 4)


def add_codes(
    optimizer: Any, variables: Any, add: Callable[..., Any], made: Callable[[int], None] = lambda place: None
) -> None:
    """Makes the codes and scales of all large variables, all zero; lists of them become attributes of an
    Adam.

    Args:
        add: Makes a variable of a `shape`, a `dtype` and a `name`.
        made: Is called with the place of each large variable when there are codes for it.
    """
    for name in LISTS:
        object.__setattr__(optimizer, name, [])  # not tracked: the optimizer's variables are
    for place, variable in enumerate(variables):
        large = is_large(variable)
        for name in LISTS:
            getattr(optimizer, name).append(_add(add, variable, name) if large else None)
        if large:
            made(place)


def update_in_8_bits(optimizer: Any, gradient: Any, variable: Any, learning_rate: Any) -> None:
    """Updates a variable of an Adam that `add_codes` was called for."""
    place = slot_number(optimizer, variable)
    if optimizer.ratio_codes[place] is None:
        keras.optimizers.Adam.update_step(optimizer, gradient, variable, learning_rate)
        return
    step = tf.cast(optimizer.iterations + 1, tf.float32)
    left_1, left_2 = 1 - tf.pow(optimizer.beta_1, step), 1 - tf.pow(optimizer.beta_2, step)
    rate = tf.cast(learning_rate, tf.float32) * tf.sqrt(left_2) / left_1
    thresholds = walking(optimizer.iterations)

    def update(gradient: Any, squares: Any, *codes: Any) -> tuple[Any, ...]:
        ratio, root = decode_even(*codes[:2]), decode_squares(*codes[2:])
        momentum = ratio * (root + optimizer.epsilon) * optimizer.beta_1 + gradient * (1 - optimizer.beta_1)
        squares = tf.square(gradient) if squares is None else squares
        root = tf.sqrt(tf.square(root) * optimizer.beta_2 + squares * (1 - optimizer.beta_2))
        ratio = momentum / (root + optimizer.epsilon)
        return ratio * rate, *encode_even(ratio, thresholds), *encode_squares(root, thresholds)

    codes = [getattr(optimizer, name)[place] for name in LISTS]
    moved, *values = in_parts(update, _RESULTS, *_in_blocks(gradient), *(slot.value for slot in codes))
    optimizer.assign_sub(variable, from_blocks(moved, variable.shape))
    for slot, value in zip(codes, values, strict=True):
        optimizer.assign(slot, value)


def quantise(optimizer: Any, place: int, momentum: Any, velocity: Any) -> None:
    """Takes over both moments of the n-th variable from Adam, rounded to the nearest codes."""
    root = to_blocks(tf.sqrt(tf.cast(velocity, tf.float32)))
    ratio = to_blocks(tf.cast(momentum, tf.float32)) / (root + optimizer.epsilon)
    values = (*encode_even(ratio, NEAREST), *encode_squares(root, NEAREST))
    for name, value in zip(LISTS, values, strict=True):
        optimizer.assign(getattr(optimizer, name)[place], value)


def dequantise(optimizer: Any, place: int, shape: Any) -> tuple[Any, Any]:
    """Returns both moments of the n-th variable in its own shape, as Adam keeps them: arrays on the host."""
    codes = [getattr(optimizer, name)[place].numpy() for name in LISTS]
    ratio, root = decode_even(*codes[:2]), decode_squares(*codes[2:])
    size = math.prod(shape)
    momentum, velocity = (
        moment.reshape(-1)[:size].reshape(shape)
        for moment in (ratio * (root + optimizer.epsilon), root * root)
    )
    return momentum, velocity


def _in_blocks(gradient: Any) -> tuple[Any, Any]:
    """Returns a gradient in rows of a block each, and its squares where they are not those of what is
    returned.

    A row of a table that a batch has more than once is in a sparse gradient more than once. Keras's Adam
    squares each of them, and then adds them up; so does this one.
    """
    gradient = tf.cast(gradient, tf.float32)
    if not isinstance(gradient, tf.IndexedSlices):
        return to_blocks(gradient), None
    squares = tf.IndexedSlices(tf.square(gradient.values), gradient.indices, gradient.dense_shape)
    return to_blocks(tf.convert_to_tensor(gradient)), to_blocks(tf.convert_to_tensor(squares))


def _add(add: Callable[..., Any], variable: Any, name: str) -> Any:
    scales = name.endswith("scales")
    dtype = "float32" if scales else "int8" if name.startswith("ratio") else "uint8"
    path = getattr(variable, "path", variable.name).replace("/", "_").replace(":", "_")
    shape = (count_blocks(variable.shape), 1 if scales else BLOCK)
    return add(shape=shape, dtype=dtype, name=f"{path}_{name}")
