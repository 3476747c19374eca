"""Gradients added up in place: one variable beside each weight, never a second copy of all gradients.

The gradient of an embedding is a list of rows, and Keras's optimizers treat a row that occurs twice otherwise than
their sum (Adam squares each). So rows are not added up but collected, and the optimizer gets the list that it
would have got for the whole batch. The gradient of a product with a sparse matrix is a list of rows, too, but
each row of the batch is there once, as a sum: those are added up.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from memfit.compat.keras_layers import all_layers
from memfit.compat.tf_graphs import has_each_row_once, make_variable
from memfit.errors import InvalidInput


class OtherKindOfGradient(Exception):
    """A weight that was taken to have a dense gradient has rows, or the other way round; trace again."""


class Accumulators:
    """The sum of the dense gradients of a model's weights, and which of its weights have rows instead."""

    def __init__(self, model: Any) -> None:
        self._sums: dict[int, tf.Variable] = {}
        self._reached: set[int] = set()
        self._model = model
        self._rowed: set[int] | None = None
        self._summed: set[int] = set()
        # TensorFlow's optimizer would turn tf.zeros into a constant of that size, which stays in memory.
        self._zero = tf.Variable(0.0, trainable=False)

    def clear(self, weights: Sequence[Any]) -> None:
        """Sets the sums of these weights to zero, creating them where they do not exist."""
        for weight in self._dense(weights):
            if id(weight) not in self._sums:
                with tf.init_scope():  # the step is being traced; variables live outside of its graph
                    self._sums[id(weight)] = make_variable(tf.zeros(weight.shape, weight.dtype), weight.shape)
            total = self._sums[id(weight)]
            total.assign(tf.fill(total.shape, tf.cast(self._zero, total.dtype)))

    def row_specs(self, weights: Sequence[Any]) -> list[tf.TensorSpec]:
        """What `add` returns: for each weight with rows the rows and their indices."""
        specs = []
        for weight in self._with_rows(weights):
            specs += [tf.TensorSpec([None, *weight.shape[1:]], weight.dtype), tf.TensorSpec([None], tf.int64)]
        return specs

    def add(self, weights: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        """Adds the dense gradients to their sums, and returns the rows of the others."""
        rows: list[Any] = []
        rowed = {id(weight) for weight in self._with_rows(weights)}
        for weight, gradient in zip(weights, gradients, strict=True):
            self._check_kind(weight, gradient, id(weight) in rowed)
            if id(weight) in rowed:
                if gradient is None:
                    rows += [tf.zeros([0, *weight.shape[1:]], weight.dtype), tf.zeros([0], tf.int64)]
                    continue
                rows += [gradient.values, tf.cast(gradient.indices, tf.int64)]
                if not tf.executing_eagerly() and has_each_row_once(gradient):
                    self._summed.add(id(weight))
            elif gradient is not None:
                self._sums[id(weight)].assign_add(gradient)
            if gradient is not None:
                self._reached.add(id(weight))
        return rows

    def written(self, weights: Sequence[Any]) -> list[Any]:
        """The sums as they are by now."""
        return [tf.convert_to_tensor(self._sums[id(weight)]) for weight in self._dense(weights)]

    def gradients(self, weights: Sequence[Any], rows: Sequence[Any]) -> list[Any]:
        """The gradients of the batch; None for a weight that has none, as TensorFlow says it."""
        left = iter(rows)
        found: dict[int, Any] = {}
        for weight in self._with_rows(weights):
            values, indices = next(left), next(left)
            if id(weight) in self._summed:
                indices, places = tf.unique(indices)
                values = tf.math.unsorted_segment_sum(values, places, tf.size(indices))
            shape = tf.constant(list(weight.shape), tf.int64)
            found[id(weight)] = tf.IndexedSlices(values, indices, shape)
        found |= {id(weight): tf.convert_to_tensor(self._sums[id(weight)]) for weight in self._dense(weights)}
        return [found[id(weight)] if id(weight) in self._reached else None for weight in weights]

    def _with_rows(self, weights: Sequence[Any]) -> list[Any]:
        if self._rowed is None:  # only a guess, which `add` puts right
            layers = [layer for layer in all_layers(self._model) if isinstance(layer, keras.layers.Embedding)]
            self._rowed = {id(weight) for layer in layers for weight in layer.trainable_weights}
        return [weight for weight in weights if id(weight) in self._rowed]

    def _dense(self, weights: Sequence[Any]) -> list[Any]:
        rowed = {id(weight) for weight in self._with_rows(weights)}
        return [weight for weight in weights if id(weight) not in rowed]

    def _check_kind(self, weight: Any, gradient: Any, rowed: bool) -> None:
        if gradient is None or isinstance(gradient, tf.IndexedSlices) == rowed:
            return
        if tf.executing_eagerly():  # this part has been computed; there is no way back
            raise InvalidInput(
                "In micro-batches an eager step knows only embedding layers to have sparse gradients",
                received=weight.path,
                remedy="Compile the model without run_eagerly",
            )
        assert self._rowed is not None
        self._rowed ^= {id(weight)}
        raise OtherKindOfGradient
