"""Gradients added up in place: one variable beside each weight, never a second copy of all gradients.

The gradient of an embedding is a list of rows, and Keras's optimizers treat a row that occurs twice otherwise than
their sum (Adam squares each). So rows of samples are not added up but collected, and the optimizer gets the list
that it would have got for the whole batch. Rows that are there once for any batch are added up, and so are those of
a product with a sparse matrix, of which each row of the batch is there once.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from memfit.compat.keras_layers import all_layers
from memfit.compat.tf_graphs import has_each_row_once, make_variable
from memfit.errors import InvalidInput
from memfit.steps.micro_batches.batch import Collected
from memfit.steps.micro_batches.rows import Kind, Piece, Rows, add_up_rows, come_with_samples, pieces_of

# Of each look-up that gives rows of a gradient whether they come with the samples.
LookUps = tuple[bool, ...]


class OtherKindOfGradient(Exception):
    """A weight has a gradient of another kind than it was taken to have, such as rows; trace again."""


class Accumulators:
    """The sum of the dense gradients of a model's weights, and which of its weights have rows instead."""

    def __init__(self, model: Any) -> None:
        self._sums: dict[int, tf.Variable] = {}
        self._reached: set[int] = set()
        self._model = model
        self._kinds: dict[int, LookUps] | None = None
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

    def row_specs(self, weights: Sequence[Any]) -> list[Collected]:
        """What `add` returns: for each look-up of a weight with rows the rows and their indices."""
        specs = []
        for weight in weights:
            for of_samples in self._kind_of(weight):
                values = tf.TensorSpec([None, *weight.shape[1:]], weight.dtype)
                indices = tf.TensorSpec([None], tf.int64)
                # Indices that do not depend on the samples are the same in every part.
                specs.append(Collected(values, None if of_samples else tf.reduce_sum))
                specs.append(Collected(indices, None if of_samples else tf.reduce_max))
        return specs

    def add(self, weights: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        """Adds the dense gradients to their sums, and returns the rows of the others."""
        rows: list[Any] = []
        for weight, gradient in zip(weights, gradients, strict=True):
            kind = self._check_kind(weight, gradient)
            if gradient is None:
                for _ in kind:
                    rows += [tf.zeros([0, *weight.shape[1:]], weight.dtype), tf.zeros([0], tf.int64)]
                continue
            self._reached.add(id(weight))
            if not kind:
                self._sums[id(weight)].assign_add(gradient)
                continue
            for piece in pieces_of(gradient):
                rows += [piece.values, tf.cast(piece.indices, tf.int64)]
            if not tf.executing_eagerly() and has_each_row_once(gradient):
                self._summed.add(id(weight))
        return rows

    def written(self, weights: Sequence[Any]) -> list[Any]:
        """The sums as they are by now."""
        return [tf.convert_to_tensor(self._sums[id(weight)]) for weight in self._dense(weights)]

    def gradients(self, weights: Sequence[Any], rows: Sequence[Any]) -> list[Any]:
        """The gradients of the batch; None for a weight that has none, as TensorFlow says it."""
        left = iter(rows)
        found: dict[int, Any] = {}
        for weight in weights:
            kinds = [Kind(of_samples) for of_samples in self._kind_of(weight)]
            pieces = [Piece(next(left), next(left)) for _ in kinds]
            if not pieces:
                continue
            if id(weight) in self._summed:
                values, indices = (tf.concat(parts, 0) for parts in zip(*pieces, strict=True))
                pieces, kinds = [add_up_rows(values, indices)], [Kind(of_samples=True, once=True)]
            found[id(weight)] = Rows(pieces, kinds, weight.shape)
        found |= {id(weight): tf.convert_to_tensor(self._sums[id(weight)]) for weight in self._dense(weights)}
        return [found[id(weight)] if id(weight) in self._reached else None for weight in weights]

    def _kind_of(self, weight: Any) -> LookUps:
        """The look-ups that give rows of a weight's gradient; none where it is dense."""
        if self._kinds is None:  # only a guess, which `add` puts right
            layers = [layer for layer in all_layers(self._model) if isinstance(layer, keras.layers.Embedding)]
            self._kinds = {id(weight): (True,) for layer in layers for weight in layer.trainable_weights}
        return self._kinds.get(id(weight), ())

    def _dense(self, weights: Sequence[Any]) -> list[Any]:
        return [weight for weight in weights if not self._kind_of(weight)]

    def _check_kind(self, weight: Any, gradient: Any) -> LookUps:
        """Returns the kind of a weight's gradient, which is the one that it was taken to have."""
        known = self._kind_of(weight)
        if gradient is None:
            return known
        kind: LookUps = ()
        if isinstance(gradient, tf.IndexedSlices):
            kind = tuple(come_with_samples(piece.indices) for piece in pieces_of(gradient))
        if kind == known:
            return known
        if tf.executing_eagerly():  # this part has been computed; there is no way back
            raise InvalidInput(
                "With run_eagerly and micro-batches only embedding layers may have sparse gradients",
                received=weight.path,
                remedy="Compile the model without run_eagerly",
            )
        assert self._kinds is not None
        self._kinds[id(weight)] = kind
        raise OtherKindOfGradient
