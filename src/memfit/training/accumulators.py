"""Gradients added up in place: one variable beside each weight, never a second copy of all gradients."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class Accumulators:
    """One sum for every weight of a model."""

    def __init__(self) -> None:
        self._sums: dict[int, tf.Variable] = {}
        self._reached: set[int] = set()

    def clear(self, weights: Sequence[Any]) -> None:
        """Sets the sums of these weights to zero, creating them where they do not exist."""
        for weight in weights:
            if id(weight) not in self._sums:
                with tf.init_scope():  # the step is being traced; variables live outside of its graph
                    self._sums[id(weight)] = tf.Variable(
                        tf.zeros(weight.shape, weight.dtype), trainable=False
                    )
            total = self._sums[id(weight)]
            total.assign(tf.zeros(total.shape, total.dtype))

    def add(self, weights: Sequence[Any], gradients: Sequence[Any]) -> None:
        """Adds a gradient to each sum; a gradient that is None adds nothing."""
        for weight, gradient in zip(weights, gradients, strict=True):
            if gradient is None:
                continue
            self._reached.add(id(weight))
            total = self._sums[id(weight)]
            if isinstance(gradient, tf.IndexedSlices):
                total.scatter_add(gradient)
            else:
                total.assign_add(gradient)

    def gradients(self, weights: Sequence[Any]) -> list[Any]:
        """The sums, as gradients of these weights; None for a weight that has none, as TensorFlow says it."""
        return [tf.convert_to_tensor(self._sums[id(w)]) if id(w) in self._reached else None for w in weights]
