"""The largest convolutions in parts of the batch, as for a GPU: the same gradients, and nothing but parts."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from memfit.estimation.gpu_compiler import lowering
from memfit.planning.rematerialisation import front
from memfit.training import rematerialisation_parts
from memfit.training.rematerialisation import rematerialised


def model_with_everything() -> keras.Model:
    """Strides, depthwise convolutions, a skip and a concatenation."""
    x = image = keras.Input((16, 16, 3))
    skip = None
    for strides in (1, 1, 2):
        x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same")(x)))
        skip = x if skip is None else skip
        x = layers.DepthwiseConv2D(3, strides=strides, padding="same")(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Concatenate()([layers.Conv2DTranspose(8, 2, strides=2)(x), skip])
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same")(x)))
    return keras.Model(image, layers.Dense(2)(layers.GlobalAveragePooling2D()(x)))


def gradients(model: keras.Model, call: Any, images: Any) -> tuple[list[Any], tf.Graph]:
    @tf.function(jit_compile=True, input_signature=[tf.TensorSpec((None, 16, 16, 3))])
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(call(x, training=True)))
        return loss, *tape.gradient(loss, model.trainable_variables)

    found = [value.numpy() for value in step(images)]
    return found, step.get_concrete_function().graph


@pytest.mark.parametrize("batch", [8, 10], ids=["equal parts", "a part begins earlier"])
def test_gradients_are_the_same_in_parts(monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    keras.utils.set_random_seed(1)
    model = model_with_everything()
    images = np.random.default_rng(1).normal(size=(batch, 16, 16, 3)).astype("float32")
    weights = model.get_weights()
    stock, _ = gradients(model, model, images)
    statistics = [variable.numpy() for variable in model.non_trainable_variables]
    model.set_weights(weights)
    monkeypatch.setattr(rematerialisation_parts, "_LARGE", 0.0)
    monkeypatch.setattr(lowering, "_lowering", ["train"])
    smallest = front(model, batch, compiled=True)[-1]
    ours, graph = gradients(model, rematerialised(model, smallest), images)
    for mine, theirs in zip(ours, stock, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    for variable, theirs in zip(model.non_trainable_variables, statistics, strict=True):
        np.testing.assert_allclose(variable.numpy(), theirs, rtol=1e-5, atol=1e-6)
    loops = [op for op in graph.get_operations() if "While" in op.type]
    convolutions = [op for op in graph.get_operations() if "Conv2" in op.type or "Conv2d" in op.type]
    assert len(loops) > 20
    assert not [op.name for op in convolutions if any(output.consumers() for output in op.outputs)]


def test_steps_for_a_cpu_have_no_parts() -> None:
    model = model_with_everything()
    images = np.zeros((8, 16, 16, 3), "float32")
    smallest = front(model, 8, compiled=True)[-1]
    _, graph = gradients(model, rematerialised(model, smallest), images)
    assert not [op for op in graph.get_operations() if "While" in op.type]
