"""The gradients of one step, kept where a failure of the update cannot reach them, without a copy."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class GradientShelf:
    """Holds the gradients between the function that computes them and the function that applies them.

    Assigning a tensor to a variable takes over its buffer, so that nothing is copied; assigning an empty tensor
    gives it back, gradient by gradient, as the update no longer needs them.
    """

    def __init__(self) -> None:
        self._places: dict[int, tuple[tf.Variable, ...]] = {}
        self._weights: list[Any] = []

    def put(self, gradients: Sequence[Any], weights: Sequence[Any]) -> None:
        """Takes the gradients of a step; some of them may be None."""
        self._weights = list(weights)
        for weight, gradient in zip(weights, gradients, strict=True):
            if gradient is None:
                continue
            rows = isinstance(gradient, tf.IndexedSlices)
            parts = (gradient.values, gradient.indices) if rows else (gradient,)
            for place, part in zip(self._place(weight, parts), parts, strict=True):
                place.assign(part)

    @property
    def weights(self) -> list[Any]:
        """The weights whose gradients were put here last, those without a gradient among them."""
        return self._weights

    def read(self, weight: Any) -> Any:
        """The gradient of a weight, or None."""
        parts = [place.read_value() for place in self._places.get(id(weight), ())]
        if not parts:
            return None
        if len(parts) == 1:
            parts[0].set_shape(weight.shape)
            return parts[0]
        values, indices = parts
        values.set_shape([None, *weight.shape[1:]])
        indices.set_shape([None])
        return tf.IndexedSlices(values, indices, tf.constant(list(weight.shape), tf.int64))

    def places(self) -> list[tf.Variable]:
        """The variables that hold the gradients."""
        return [place for places in self._places.values() for place in places]

    def clear(self) -> None:
        """Gives all gradients back."""
        for place in self.places():
            place.assign(nothing(place.dtype))

    def _place(self, weight: Any, parts: Sequence[Any]) -> tuple[tf.Variable, ...]:
        known = self._places.get(id(weight))
        if known is None or len(known) != len(parts):
            with tf.init_scope(), tf.device(weight.value.device):
                self._places[id(weight)] = known = tuple(
                    tf.Variable(nothing(part.dtype), shape=tf.TensorShape(None), trainable=False)
                    for part in parts
                )
        return known


def nothing(dtype: Any) -> Any:
    """An empty tensor."""
    return tf.zeros([0], dtype)
