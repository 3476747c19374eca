"""A model's own `train_step`, which cannot be split: it is noted whether it had begun to update the weights."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import keras
import tensorflow as tf

from memfit.compat.attributes import overridden
from memfit.estimation.optimizers import optimizers_of
from memfit.steps.rematerialisation import Segments, rematerialised_tapes
from memfit.steps.tracing import Body


def watch_updates(model: keras.Model, begun: tf.Variable, segments: Segments | None = None) -> Body:
    """Returns a model's own `train_step`, whose optimizers update only after all gradients, and note it.

    Args:
        begun: A boolean variable that becomes true when the first optimizer begins to update.
        segments: What its tapes keep; None for everything.
    """
    optimizers = optimizers_of(model)

    def watched(optimizer: Any) -> Callable[..., Any]:
        own = optimizer.apply

        def apply(grads: Sequence[Any], trainable_variables: Any = None) -> Any:
            if trainable_variables is not None and not optimizer.built:
                optimizer.build(trainable_variables)  # the initial values must not wait for the gradients
            tensors = tf.nest.flatten(grads, expand_composites=True)
            with tf.control_dependencies([tensor for tensor in tensors if tensor is not None]):
                begins = begun.assign(True)
            with tf.control_dependencies([begins]):
                return own(grads, trainable_variables)

        return apply

    def train_step(data: Any) -> Any:
        with ExitStack() as stack:
            for optimizer in optimizers:
                stack.enter_context(overridden(optimizer, apply=watched(optimizer)))
            if segments is not None:
                stack.enter_context(rematerialised_tapes(model, segments))
            return model.train_step(data)

    return train_step
