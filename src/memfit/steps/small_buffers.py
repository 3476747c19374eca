"""Small buffers that outlive the step they are made in, kept out of what is free for large tensors.

The allocator puts a small buffer into the smallest gap there is, which while a step runs lies between large
tensors. When those are gone, 256 bytes in the middle are enough that a large tensor of the next step finds no room:
so ran out the second step of a MobileNetV2 planned for 90 samples, with 485 of 512 MiB free.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from memfit.estimation.replay.layout import PLACE, nursery
from memfit.steps.gradients import nothing

# Larger variables are frozen weights, which no step moves.
_LARGE = 2**20
# What the allocator rounds requests to, and the constants of an update for each weight: a count of each write, and
# numbers of the optimizer (Adam: 4).
_PLACE = 256
_CONSTANTS = 6
# What a step keeps of the size of each small variable.
_GAPS = 8


def is_small(variable: Any) -> bool:
    """Whether a variable is so small that moving it costs nothing."""
    return bool(variable.shape.is_fully_defined() and bytes_of(variable) <= _LARGE)


def bytes_of(variable: Any) -> int:
    """The bytes of a variable's value."""
    return int(variable.shape.num_elements()) * int(variable.dtype.size)


def settle(variables: Sequence[Any], places: Sequence[Any]) -> None:
    """Moves variables to the places where they were before the last step, one by one; to be traced.

    A step gives them new buffers somewhere among its tensors. Each place is given back and taken again at once, so
    that the copy finds a gap of just its size there. Place and variable then share the buffer, until a step gives
    the variable a new one again: the place holds what was before the step.
    """
    moved: list[Any] = []
    for variable, place in zip(variables, places, strict=True):
        with tf.control_dependencies(moved):
            empty = place.assign(nothing(place.dtype), read_value=False)
        with tf.control_dependencies([empty]):
            value = tf.raw_ops.DeepCopy(x=variable.read_value())
        moved = [place.assign(value, read_value=False), variable.assign(value, read_value=False)]


def settled_logs(logs: Any) -> Any:
    """Returns logs that lie where there is least room between two steps; Keras holds them through the next one."""
    return keras.tree.map_structure(
        lambda value: tf.raw_ops.DeepCopy(x=value) if tf.is_tensor(value) else value, logs
    )


class Places:
    """Places for the constants of an update, taken before the first step.

    TensorFlow makes them when the function runs for the first time, and gradients lie all over the memory then.
    """

    def __init__(self, weights: Sequence[Any]) -> None:
        self._taken: list[tf.Tensor] = []
        for weight in weights:
            with tf.device(weight.value.device):
                self._taken += [
                    tf.raw_ops.Empty(shape=[PLACE // 4], dtype=tf.float32) for _ in range(2 * _CONSTANTS)
                ]

    def free(self) -> None:
        """Gives every other place back, so that each is a gap of its own, which fits a small buffer best."""
        self._taken = self._taken[::2]


class Nursery:
    """Gaps of just the size of what is small in a step, so that it does not lie between large tensors."""

    def __init__(self, variables: Sequence[Any]) -> None:
        with tf.device(variables[0].device):
            taken = [
                tf.raw_ops.Empty(shape=[size], dtype=tf.uint8)
                for gap in nursery(map(bytes_of, variables))
                for size in (gap, PLACE)
            ]
        self._between = taken[1::2]
