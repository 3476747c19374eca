"""Numbers in 8 bits: rows of values, each row a block with a scale of its own.

Block-wise quantisation is that of Dettmers et al., "8-bit Optimizers via Block-wise Quantization" (2021): an
outlier costs precision in its own block only. Their codes stand for a table of 256 numbers, in which the
nearest one has to be searched: on the CPU that took 5 times as long as Adam's whole update, and under XLA 700
times. Here codes are computed: in even steps, or as square roots, which are finer near zero. Roots have no
code for zero, so that what is divided by is never rounded down to nothing (the zero-point problem of Li et
al., "Memory Efficient Optimizers with 4-bit States", 2023).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

BLOCK = 256
# Blocks that are computed at once: half a MiB a tensor, which a cache holds, and takes longer than a loop's turn.
_PART = 512
# The threshold that rounds to the nearest code: what was read from codes is written as the same ones.
NEAREST = 0.5
_EVEN_LEVELS = 127.0
_LEVELS = 256.0
# Rounding errors of the largest value of a block must not carry it to another code.
_EDGE = 2.0**-10
# Multiples of the golden ratio and of the plastic number fill [0, 1) evenly, however many there are.
_PLACES = np.modf(np.arange(BLOCK) * 0.6180339887498949)[0].astype("float32")
_STEP = round(0.7548776662466927 * 2**32)


def count_blocks(shape: Any) -> int:
    """Returns how many blocks hold a tensor of a shape: as many in each part of it."""
    blocks = _divide(math.prod(shape), BLOCK)
    parts = _divide(blocks, _PART)
    return parts * _divide(blocks, parts)


def to_blocks(tensor: Any) -> Any:
    """Returns the values of a tensor in rows of a block each, the last one filled with zeros."""
    size = math.prod(tensor.shape)
    missing = count_blocks(tensor.shape) * BLOCK - size
    if missing:
        tensor = tf.pad(tf.reshape(tensor, [size]), [[0, missing]])
    return tf.reshape(tensor, [-1, BLOCK])


def from_blocks(blocks: Any, shape: Any) -> Any:
    """Returns the tensor of a shape whose values `to_blocks` put into rows."""
    size = math.prod(shape)
    if blocks.shape[0] * BLOCK != size:
        blocks = tf.reshape(blocks, [-1])[:size]
    return tf.reshape(blocks, shape)


def in_parts(
    function: Callable[..., Sequence[Any]], results: Sequence[tuple[Any, int]], *rows: Any
) -> list[Any]:
    """Computes something of rows of blocks a part at a time, so that what is needed on the way is small.

    Args:
        function: Takes rows of all tensors, and returns tensors with as many rows.
        results: The type of each of these, and how many values a row of it has.
        rows: Tensors with as many rows as `count_blocks` says; None is passed on.
    """
    blocks = next(tensor.shape[0] for tensor in rows if tensor is not None)
    parts = _divide(blocks, _PART)
    if parts == 1:
        return list(function(*rows))
    size = blocks // parts
    cut = [None if tensor is None else tf.reshape(tensor, [parts, size, tensor.shape[1]]) for tensor in rows]
    arrays = [tf.TensorArray(dtype, parts, element_shape=[size, width]) for dtype, width in results]

    def compute(part: Any, *done: Any) -> tuple[Any, ...]:
        values = function(*(None if tensor is None else tensor[part] for tensor in cut))
        return part + 1, *(array.write(part, value) for array, value in zip(done, values, strict=True))

    _, *arrays = tf.while_loop(
        lambda part, *_: part < parts,
        compute,
        (tf.constant(0), *arrays),
        parallel_iterations=1,
        maximum_iterations=parts,  # by which XLA knows how much it takes
    )
    stacked = [array.stack() for array in arrays]
    return [tf.reshape(tensor, [blocks, width]) for tensor, (_, width) in zip(stacked, results, strict=True)]


def _divide(number: int, by: int) -> int:
    """Divides and rounds up."""
    return -(-number // by)


def walking(step: Any) -> Any:
    """Thresholds of rounding that are others in every step, and at every place of a block.

    A second moment changes by a thousandth in a step, which is less than a code: rounded to the nearest, it
    would stand still. With thresholds that walk evenly through [0, 1), it moves by a code as often as it
    should, and a step that is done again rounds as it did the first time.

    Args:
        step: The number of the update, a whole number.
    """
    walked = tf.math.floormod(tf.cast(step, tf.int64) * _STEP, 2**32)
    places = _PLACES + tf.cast(walked, tf.float32) * 2.0**-32
    return _EDGE + (1 - 2 * _EDGE) * (places - tf.floor(places))


def encode_even(values: Any, thresholds: Any) -> tuple[Any, Any]:
    """Returns the int8 codes and the scales of rows of values, in even steps on both sides of zero."""
    scales = tf.maximum(
        tf.reduce_max(values, axis=1, keepdims=True), -tf.reduce_min(values, axis=1, keepdims=True)
    )
    levels = values * tf.math.divide_no_nan(_EVEN_LEVELS, scales)
    return tf.cast(tf.floor(levels + thresholds), tf.int8), scales


def decode_even(codes: Any, scales: Any) -> Any:
    """Returns the values of what `encode_even` returned; of arrays, an array."""
    return _floats(codes) * (scales / _EVEN_LEVELS)


def encode_squares(values: Any, thresholds: Any) -> tuple[Any, Any]:
    """Returns the uint8 codes and the scales of rows of values, none negative, in steps finer near zero."""
    scales = tf.reduce_max(values, axis=1, keepdims=True)
    levels = tf.sqrt(values * tf.math.divide_no_nan(_LEVELS**2, scales))
    # What is below the first code is cut off to 0.
    return tf.cast(levels + (thresholds - 1), tf.uint8), scales


def decode_squares(codes: Any, scales: Any) -> Any:
    """Returns the values of what `encode_squares` returned: none is zero, but in a block of zeros."""
    levels = _floats(codes) + 1
    return levels * levels * (scales / _LEVELS**2)


def _floats(codes: Any) -> Any:
    return codes.astype("float32") if isinstance(codes, np.ndarray) else tf.cast(codes, tf.float32)
