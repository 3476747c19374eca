"""Placeholder buffers: gaps that keep small tensors out of what is free for large ones.

The allocator puts a small tensor into the smallest gap there is, which while a step runs lies between large ones.
When those are gone, 256 bytes in the middle are enough that a large tensor of the next step finds no room: so ran
out the second step of a MobileNetV2 planned for 90 samples, with 485 of 512 MiB free.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from memfit.estimation.recording.kept import size_of
from memfit.steps.gradients import empties

# The smallest chunk that the allocator hands out.
_SMALLEST = 256
# Variables up to this are statistics, scales and biases; larger ones are not moved between steps.
_SMALL_VARIABLE = 2**14
_MOVED_VARIABLE = 2**20
# How many tensors of the size of each small variable a step keeps at once (what a normalisation saves for the
# backward pass, its new statistics), and how many of the smallest size.
_OF_EACH = 8
# Constants of an update for each weight: a count of each write, and numbers of the optimizer (Adam: 4).
_CONSTANTS = 6


def is_small(variable: Any) -> bool:
    """Whether a variable is so small that moving it costs nothing; larger ones are frozen weights."""
    return bool(variable.shape.is_fully_defined() and size_of(variable) <= _MOVED_VARIABLE)


def settle(variables: Sequence[Any], buffers: Sequence[Any]) -> None:
    """Moves variables to the buffers where they were before the last step, one by one; to be traced.

    A step gives them new buffers somewhere among its tensors. Each old buffer is freed and taken again at once, so
    that the copy finds a gap of just its size there. Both then share it, until a step gives the variable a new one
    again: the old one holds what was before the step.
    """
    moved: list[Any] = []
    nothing = empties(buffers)
    for variable, buffer in zip(variables, buffers, strict=True):
        with tf.control_dependencies(moved):
            freed = buffer.assign(nothing[buffer.dtype], read_value=False)
        with tf.control_dependencies([freed]):
            value = tf.raw_ops.DeepCopy(x=variable.read_value())
        moved = [buffer.assign(value, read_value=False), variable.assign(value, read_value=False)]


def settle_logs(logs: Any) -> Any:
    """Returns logs copied to where there is least room between two steps; Keras holds them through the next one."""
    return keras.tree.map_structure(
        lambda value: tf.raw_ops.DeepCopy(x=value) if tf.is_tensor(value) else value, logs
    )


class UpdatePlaceholders:
    """Buffers for the constants of an update, taken before the first step.

    TensorFlow makes them when the function runs for the first time, and gradients lie all over the memory then.
    """

    def __init__(self, weights: Sequence[Any]) -> None:
        self._taken: list[tf.Tensor] = []
        for weight in weights:
            with tf.device(weight.value.device):
                self._taken += [
                    tf.raw_ops.Empty(shape=[_SMALLEST], dtype=tf.uint8) for _ in range(2 * _CONSTANTS)
                ]

    def free(self) -> None:
        """Frees every other one, so that each is a gap of its own, which fits a small tensor best."""
        self._taken = self._taken[::2]


class PlaceholderBuffers:
    """Gaps of just the sizes of what is small in a step, each between two buffers that stay."""

    def __init__(self, variables: Sequence[Any]) -> None:
        sizes = [size for size in map(size_of, variables) if size <= _SMALL_VARIABLE]
        gaps = [gap for size in sizes for gap in (*[_SMALLEST] * _OF_EACH, *[size] * _OF_EACH)]
        with tf.device(variables[0].device):
            taken = [
                tf.raw_ops.Empty(shape=[size], dtype=tf.uint8) for gap in gaps for size in (gap, _SMALLEST)
            ]
        self._between = taken[1::2]
