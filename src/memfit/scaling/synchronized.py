"""Batch statistics over the samples of all ranks.

The only place where ranks meet while they compute. A rank that runs out of memory there cannot be waited for: its
process ends, and all are started again.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf

from memfit.compat.keras_layers import all_layers, moments_replaced
from memfit.scaling.communicator import Ranks


def normalising_layers(model: keras.Model) -> list[Any]:
    """The layers of a model that normalise over the batch while it trains."""
    return [
        layer
        for layer in all_layers(model)
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
    ]


@contextmanager
def synchronized(ranks: Ranks, layers: Sequence[Any]) -> Iterator[None]:
    """Lets layers compute their moments over all ranks' samples for a while."""
    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(moments_replaced(layer, _moments_of_all(ranks)))
        yield


def _moments_of_all(ranks: Ranks) -> Callable[..., tuple[Any, Any]]:
    """Mean and variance over all ranks' samples, in two passes as TensorFlow's own: mean, then distances."""

    @tf.custom_gradient
    def add_up(values: Any) -> Any:
        # Every rank's loss depends on every rank's values: the gradient of a sum over ranks is one, too.
        return ranks.sum([values])[0], lambda upstream: ranks.sum([upstream])[0]

    def compute(inputs: Any, mask: Any, axes: Sequence[int]) -> tuple[Any, Any]:
        weights = tf.ones_like(inputs)
        least = tf.constant(0.0, inputs.dtype)
        if mask is not None:  # as Keras has it, which adds a little to what it divides by
            weights = tf.broadcast_to(tf.cast(mask, inputs.dtype)[..., None], tf.shape(inputs))
            least = tf.constant(keras.config.epsilon(), inputs.dtype)
        total = tf.reduce_sum(weights * inputs, axes)
        count = tf.reduce_sum(weights, axes)
        total, count = tf.unstack(add_up(tf.stack([total, count])))
        mean = total / (count + least)
        shape = [1 if axis in axes else size for axis, size in enumerate(tf.unstack(tf.shape(inputs)))]
        distances = tf.square(inputs - tf.reshape(mean, shape))
        variance = add_up(tf.reduce_sum(weights * distances, axes)) / (count + least)
        return mean, variance

    return compute
