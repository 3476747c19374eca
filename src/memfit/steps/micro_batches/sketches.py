"""Gradients in a few numbers: sums with random signs. Those of parts add up as the gradients themselves do.

So a trial compares gradients without keeping them: each becomes a few numbers as soon as it is computed. A sum with
random signs is as large as the gradient's norm, give or take; it is zero by chance only.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

SUMS = 4  # with other signs each: two gradients that differ have the same sums once in ten thousand times, or less
COLUMNS = SUMS + 1  # the last one is the norm


def sketch(gradients: Sequence[Any], weights: Sequence[Any]) -> Any:
    """Returns a row for each gradient: its sums, and its norm; zeros where there is none."""
    signs = _Signs()
    nothing = tf.zeros([SUMS]), tf.zeros([])
    rows = [
        nothing if gradient is None else _sum_up(gradient, tuple(weight.shape), signs)
        for gradient, weight in zip(gradients, weights, strict=True)
    ]
    if not rows:
        return tf.zeros([0, COLUMNS], tf.float64)
    sums, squares = (
        tf.stack([tf.cast(part, tf.float64) for part in parts]) for parts in zip(*rows, strict=True)
    )
    return tf.concat([sums, tf.sqrt(squares)[:, None]], 1)


def _sum_up(gradient: Any, shape: tuple[int, ...], signs: "_Signs") -> tuple[Any, Any]:
    """Returns sums with random signs, and that of the squares."""
    if isinstance(gradient, tf.IndexedSlices):
        inner, values = int(np.prod(shape[1:])), _wide(gradient.values)
        of_rows = tf.gather(signs(shape[0], values.dtype, 0), gradient.indices)
    else:
        inner, values = int(shape[-1]) if shape else 1, _wide(gradient)
        of_rows = signs(int(np.prod(shape[:-1])), values.dtype, 0)
    if len(values.shape) != 2:
        values = tf.reshape(values, [-1, inner])
    sums = tf.reduce_sum(tf.matmul(values, signs(inner, values.dtype, 1)) * of_rows, 0)
    return sums, tf.reduce_sum(values * values)


def _wide(values: Any) -> Any:
    """Returns values in a format in which many can be summed."""
    return values if values.dtype in (tf.float32, tf.float64) else tf.cast(values, tf.float32)


class _Signs:
    """Random signs, the same in every trial; those of equal lengths are there once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Any] = {}

    def __call__(self, length: int, dtype: Any, axis: int) -> Any:
        key = (length, dtype, axis)
        if key not in self._known:
            random = np.random.default_rng((length, axis))
            signs = random.integers(0, 2, (length, SUMS)).astype("int8") * np.int8(2) - np.int8(1)
            self._known[key] = tf.cast(tf.constant(signs, tf.int8), dtype)
        return self._known[key]
