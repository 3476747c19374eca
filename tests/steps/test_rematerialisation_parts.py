"""The largest convolutions in parts of the batch: the same gradients, and nothing but parts."""

from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from memfit.steps.rematerialisation import find_choices, rematerialise
from memfit.steps.rematerialisation.rewrite import split_convolutions


def model_with_everything() -> keras.Model:
    """Strides, depthwise convolutions, a skip and a concatenation."""
    x = image = keras.Input((16, 16, 3))
    skip = None
    for strides in (1, 2):
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


def leading_to_results(graph: tf.Graph) -> set[Any]:
    found: set[Any] = set()
    waiting = [tensor.op for tensor in graph.outputs]
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
    return found


@pytest.mark.parametrize(
    ("batch", "parts"),
    [(8, 4), (10, 4), (8, 16)],
    ids=["equal parts", "a part begins earlier", "more parts than samples"],
)
def test_gradients_are_the_same_in_parts(monkeypatch: pytest.MonkeyPatch, batch: int, parts: int) -> None:
    keras.utils.set_random_seed(1)
    model = model_with_everything()
    images = np.random.default_rng(1).normal(size=(batch, 16, 16, 3)).astype("float32")
    weights = model.get_weights()
    stock, _ = gradients(model, model, images)
    statistics = [variable.numpy() for variable in model.non_trainable_variables]
    model.set_weights(weights)
    monkeypatch.setattr(split_convolutions, "_LARGE", 0.0)
    monkeypatch.setattr(split_convolutions, "_PARTS", parts)
    smallest = replace(find_choices(model, batch, compiled=True)[-1], split_convolutions=True)
    ours, graph = gradients(model, rematerialise(model, smallest), images)
    for mine, theirs in zip(ours, stock, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    for variable, theirs in zip(model.non_trainable_variables, statistics, strict=True):
        np.testing.assert_allclose(variable.numpy(), theirs, rtol=1e-5, atol=1e-6)
    types = [op.type for op in leading_to_results(graph)]
    assert sum("While" in kind for kind in types) > 20
    assert not [kind for kind in types if "Conv2" in kind]


def test_parts_are_made_only_where_they_were_chosen() -> None:
    model = model_with_everything()
    images = np.zeros((8, 16, 16, 3), "float32")
    smallest = find_choices(model, 8, compiled=True)[-1]
    _, graph = gradients(model, rematerialise(model, smallest), images)
    assert not [op for op in leading_to_results(graph) if "While" in op.type]
