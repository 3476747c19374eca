"""Losses of rematerialised steps: Keras computes a cross-entropy from logits where it can see them."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from memfit.steps.recipe import Recipe
from memfit.steps.rematerialisation import find_choices
from memfit.steps.train_step import build

STEPS = 3


pytestmark = pytest.mark.usefixtures("float64")


class Plain(layers.Layer):
    """Ends in an op of TensorFlow's, which Keras knows by its type alone."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def call(self, x: Any) -> Any:
        return self.function(x)


ENDS = {
    "softmax": (lambda: layers.Activation("softmax"), "sparse_categorical_crossentropy"),
    "softmax over another axis": (lambda: layers.Softmax(axis=1), "sparse_categorical_crossentropy"),
    "sigmoid": (lambda: layers.Activation("sigmoid"), "binary_crossentropy"),
    "tf.nn.softmax": (lambda: Plain(tf.nn.softmax), "sparse_categorical_crossentropy"),
    "tf.nn.sigmoid": (lambda: Plain(tf.nn.sigmoid), "binary_crossentropy"),
    "tf.nn.softmax, another loss": (lambda: Plain(tf.nn.softmax), "binary_crossentropy"),
    "softmax, another loss": (lambda: layers.Activation("softmax"), "binary_crossentropy"),
}


def network(end: layers.Layer, loss: str) -> keras.Model:
    keras.utils.set_random_seed(5)
    x = inputs = keras.Input((8, 8, 3))
    for _ in range(3):
        x = layers.Dropout(0.2)(layers.Conv2D(8, 3, padding="same", activation="relu")(x))
    # Probabilities below 1e-7, where a cross-entropy of probabilities is cut off.
    x = layers.Rescaling(60.0)(layers.Dense(4)(layers.GlobalAveragePooling2D()(x)))
    model = keras.Model(inputs, end(x))
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["mse"], jit_compile=False)
    return model


@pytest.mark.parametrize("name", ENDS)
def test_the_loss_of_saturated_outputs_is_stocks(name):
    make_end, loss = ENDS[name]
    stock, other = network(make_end(), loss), network(make_end(), loss)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(STEPS, 6, 8, 8, 3))
    y = rng.integers(0, 4, (STEPS, 6, 1))
    if loss == "binary_crossentropy":
        y = (y == np.arange(4)).astype("float64")
    spec = tuple(tf.TensorSpec((None, *part.shape[2:]), part.dtype) for part in (x, y))
    steps = [build(stock, Recipe()), build(other, Recipe(segments=find_choices(other, 6)[-1]))]
    for batch in zip(map(tf.constant, x), map(tf.constant, y), strict=True):
        ours, theirs = (step.run(batch, spec) for step in steps)
        assert {key: float(value) for key, value in ours.items()} == pytest.approx(
            {key: float(value) for key, value in theirs.items()}, rel=1e-12
        )
    for one, two in zip(stock.variables, other.variables, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(two), rtol=1e-10, atol=1e-14)
