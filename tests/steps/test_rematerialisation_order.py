"""Under XLA what is computed again waits for what the backward pass has made before."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from memfit.steps.rematerialisation import Segments, find_choices, rematerialise


def test_a_chain_that_begins_with_an_op_that_cannot_wait_waits_at_the_next() -> None:
    x = image = keras.Input((16, 16, 3))
    x = layers.ZeroPadding2D(1)(x)  # reads nothing but the images, which no op of the backward pass makes
    for _ in range(6):
        x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same")(x)))
    model = keras.Model(image, layers.Dense(2)(layers.GlobalAveragePooling2D()(x)))
    # Where all is computed again at the beginning of the backward pass there is nothing to wait for.
    assert any(
        _waits(op) for choice in find_choices(model, 8, compiled=True) for op in _firsts(model, choice)
    )


def _firsts(model: keras.Model, segments: Segments) -> list[Any]:
    """The convolutions that run again and read padded images."""
    call = rematerialise(model, segments)

    @tf.function(jit_compile=True)
    def step(images: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(call(images, training=True)))
        return tape.gradient(loss, model.trainable_variables)

    graph = step.get_concrete_function(np.zeros((8, 16, 16, 3), "float32")).graph
    again = [op for op in graph.get_operations() if op.type == "Conv2D" and "recomputed/" in op.name]
    return [op for op in again if any(_maker(tensor).type == "Pad" for tensor in op.inputs)]


def _waits(op: Any) -> bool:
    """Whether the filter comes from behind a barrier together with other tensors."""
    barriers = [tensor.op for tensor in op.inputs if tensor.op.type == "XlaOptimizationBarrier"]
    return any(len(barrier.inputs) > 1 for barrier in barriers)


def _maker(tensor: Any) -> Any:
    while tensor.op.type == "XlaOptimizationBarrier":
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor.op
