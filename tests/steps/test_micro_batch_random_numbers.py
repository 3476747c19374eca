"""Micro-batches draw the random numbers that their samples would get in the whole batch."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from memfit.steps.micro_batches.exactness import Verdict, try_in_parts
from memfit.steps.recipe import Recipe
from memfit.steps.rematerialisation import find_choices
from memfit.steps.train_step import build

SHAPE = (9, 7, 3)  # rows of odd lengths: a counter gives several numbers at once
SAMPLES, STEPS = 11, 3


pytestmark = pytest.mark.usefixtures("float64")


class OwnNoise(layers.Layer):
    """Draws in its own way: whole numbers, one number for all samples, and two rows for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.seed = keras.random.SeedGenerator(3)

    def call(self, x: Any) -> Any:
        shape = keras.ops.shape(x)
        x = x + keras.ops.cast(keras.random.randint(shape, 0, 9, seed=self.seed), x.dtype)
        x = x * keras.random.uniform((shape[-1],), seed=self.seed, dtype=x.dtype)
        rows = keras.random.normal((2 * shape[0], 5), seed=self.seed, dtype=x.dtype)
        return x + keras.ops.reshape(keras.ops.mean(keras.ops.reshape(rows, (-1, 10)), 1), (-1, 1, 1, 1))


class GlobalNoise(layers.Layer):
    """Draws from Keras's own generator."""

    def call(self, x: Any) -> Any:
        return x + keras.random.normal(keras.ops.shape(x), dtype=x.dtype)


class Mixing(layers.Layer):
    def call(self, x: Any) -> Any:
        return x - keras.ops.mean(x, 0, keepdims=True)


class Choosing(layers.Layer):
    """Draws as TensorFlow does not draw in parts."""

    def __init__(self) -> None:
        super().__init__()
        self.seed = keras.random.SeedGenerator(3)

    def call(self, x: Any) -> Any:
        return x * keras.random.gamma(keras.ops.shape(x), 2.0, seed=self.seed, dtype=x.dtype)


EXACT: dict[str, Callable[[], layers.Layer]] = {
    "Dropout": lambda: layers.Dropout(0.4),
    "Dropout of whole samples": lambda: layers.Dropout(0.4, noise_shape=(None, 1, 1, 1)),
    "Dropout, one mask for all": lambda: layers.Dropout(0.4, noise_shape=(1, 9, 7, 3)),
    "SpatialDropout2D": lambda: layers.SpatialDropout2D(0.4),
    "GaussianNoise": lambda: layers.GaussianNoise(0.3),
    "GaussianDropout": lambda: layers.GaussianDropout(0.3),
    "AlphaDropout": lambda: layers.AlphaDropout(0.2),
    "RandomFlip": lambda: layers.RandomFlip(),
    "RandomBrightness": lambda: layers.RandomBrightness(0.3, value_range=(-3, 3)),
    "own noise": OwnNoise,
    "Keras's own generator": GlobalNoise,
}
# One trace for what differs only in the layer that draws; `make test-all` has each by itself.
ALONE = dict(EXACT)
EXACT["all of them"] = lambda: keras.Sequential([make() for make in ALONE.values()])
NOT_EXACT: dict[str, Callable[[], layers.Layer]] = {"mixes samples": Mixing, "gamma": Choosing}


def network(layer: Callable[[], layers.Layer], **compiled: Any) -> keras.Model:
    keras.utils.clear_session()  # before Keras 3.13 a seed does not begin the global generator anew
    keras.utils.set_random_seed(4)
    inputs = keras.Input(SHAPE)
    x = layers.Dense(6)(layers.Flatten()(layer()(inputs)))
    x = layers.Dense(3, activation="softmax")(layers.Dropout(0.3)(x))
    model = keras.Model(inputs, x)
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False, **compiled)
    return model


def train(model: keras.Model, recipe: Recipe) -> tuple[list[float], list[Any]]:
    random = np.random.default_rng(0)
    step = build(model, recipe)
    spec = tf.TensorSpec((None, *SHAPE), "float64"), tf.TensorSpec((None,), "int64")
    losses = []
    for _ in range(STEPS):
        batch = random.normal(size=(SAMPLES, *SHAPE)), random.integers(0, 3, SAMPLES)
        losses.append(float(step.run(tuple(map(tf.constant, batch)), spec)["loss"]))
    return losses, [np.asarray(variable) for variable in model.variables]


def samples() -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    return random.normal(size=(SAMPLES, *SHAPE)), random.integers(0, 3, SAMPLES)


@pytest.mark.parametrize("name", EXACT)
def test_steps_in_micro_batches_are_stocks(name):
    stock = train(network(EXACT[name]), Recipe())
    parts = train(network(EXACT[name]), Recipe(micro_batch=4))
    assert parts[0] == pytest.approx(stock[0], rel=1e-12)
    for one, two in zip(stock[1], parts[1], strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-12)


def test_rematerialised_micro_batches_draw_the_same_numbers_again():
    def layer() -> layers.Layer:
        return keras.Sequential([layers.Conv2D(4, 3, activation="relu"), layers.Dropout(0.4), OwnNoise()])

    other = network(layer)
    stock = train(network(layer), Recipe())
    parts = train(other, Recipe(micro_batch=4, segments=find_choices(other, SAMPLES)[-1]))
    assert parts[0] == pytest.approx(stock[0], rel=1e-12)


@pytest.mark.parametrize("name", EXACT)
def test_a_trial_finds_them_exact_and_changes_nothing(name):
    model = network(EXACT[name])
    before = [np.asarray(variable) for variable in model.variables]
    assert try_in_parts(model, samples()) == Verdict()
    for one, two in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(one, np.asarray(two))


@pytest.mark.parametrize("name", NOT_EXACT)
def test_a_trial_finds_what_micro_batches_change(name):
    assert "random numbers" in (try_in_parts(network(NOT_EXACT[name]), samples()).differs or "")


@pytest.mark.parametrize("name", ["Dropout", "Keras's own generator"])
def test_under_xla_the_numbers_are_others(name):
    model = network(EXACT[name])
    model.jit_compile = True
    assert "XLA" in (try_in_parts(model, samples()).draws or "")
