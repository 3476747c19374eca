"""Letting XLA compute one thing after another: it keeps no order but that in which data flows."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def never(tensors: Sequence[Any]) -> Any:
    """Returns a boolean that waits for all the tensors and is true only if one of them is not a number.

    Args:
        tensors: Of any type and shape; those that are not floats or have no elements are not waited for. XLA knows
            that any other x equals x.
    """
    firsts = [
        tf.reshape(tensor, [-1])[0]
        for tensor in tensors
        if tensor.dtype.is_floating and tensor.shape.num_elements() != 0
    ]
    return tf.reduce_any(tf.stack([first != first for first in firsts]))
