"""Gradients in places of their own are those of stock Keras, whatever became of the step before."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from memfit.steps.gradients import GradientShelf
from memfit.steps.recipe import Recipe
from memfit.steps.rematerialisation import find_choices
from memfit.steps.train_step import build

RANDOM = np.random.default_rng(0)
X = RANDOM.integers(0, 11, (8, 16)).astype("int32")
Y = RANDOM.normal(size=(8, 1)).astype("float32")


def network() -> keras.Model:
    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((16,), dtype="int32"),
            layers.Embedding(11, 6),
            *[layers.Conv1D(8, 3, padding="same", activation="relu") for _ in range(4)],
            layers.GlobalAveragePooling1D(),
            layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", jit_compile=False)
    return model


@pytest.mark.parametrize("repeated", [False, True])
def test_a_step_that_is_computed_again_counts_once(repeated: bool) -> None:
    stock, model = network(), network()
    step = build(model, Recipe(segments=find_choices(model, 8)[-1]))
    data = (tf.constant(X), tf.constant(Y))
    for number in range(4):
        stock.train_on_batch(X, Y)
        if repeated and number % 2:
            step.compute(data, None)  # as one that then fails: its gradients must not be in the next
        step.compute(data, None)
        step.update()
    for ours, theirs in zip(model.variables, stock.variables, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-7, err_msg=ours.path)


def test_places_are_there_before_the_gradients_and_stay_when_they_are_gone() -> None:
    weights: Any = [keras.Variable(np.ones((3, 4), "float32")), keras.Variable(np.ones(5, "float32"))]
    shelf = GradientShelf(own_buffers=True)

    @tf.function
    def put() -> None:
        shelf.put([tf.fill((3, 4), 2.0), None], weights)

    for _ in range(2):
        put()
        np.testing.assert_array_equal(shelf.read(weights[0]), np.full((3, 4), 2.0))
        assert shelf.read(weights[1]) is None
        shelf.clear()
        np.testing.assert_array_equal(shelf.read(weights[0]), np.zeros((3, 4)))


def test_logs_of_an_overridden_compute_metrics_are_kept() -> None:
    model = network()
    own = model.compute_metrics
    object.__setattr__(
        model, "compute_metrics", lambda *args, **kwargs: {**own(*args, **kwargs), "mine": 7.0}
    )
    step = build(model, Recipe(segments=find_choices(model, 8)[-1]))
    assert set(step.compute((tf.constant(X), tf.constant(Y)), None)) == {"loss", "mine"}
