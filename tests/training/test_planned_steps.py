"""Plans with several levers at once: the steps they describe train as stock Keras does."""

from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import memfit
from memfit.planning.rematerialisation import front
from training.parity import levers

RNG = np.random.default_rng(4)
X = RNG.normal(size=(24, 16, 4)).astype("float32")
Y = RNG.integers(0, 3, 24)


def convolutions() -> keras.Model:
    x = inputs = keras.Input((16, 4))
    for _ in range(6):
        x = layers.Conv1D(8, 3, padding="same", activation="relu", kernel_regularizer="l2")(x)
    x = layers.Dense(3, activation="softmax")(layers.GlobalAveragePooling1D()(x))
    model = keras.Model(inputs, x)
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


@pytest.fixture(scope="module")
def stock() -> tuple[list[Any], dict[str, list[float]]]:
    keras.utils.set_random_seed(5)
    model = convolutions()
    history = model.fit(X, Y, batch_size=12, epochs=10, verbose=0, shuffle=False)
    return model.get_weights(), history.history


@pytest.mark.parametrize("micro_batch", [None, 5])
def test_rematerialised_segments_with_and_without_micro_batches(
    stock: tuple[list[Any], dict[str, list[float]]], micro_batch: int | None
) -> None:
    keras.utils.set_random_seed(5)
    model = convolutions()
    segments = front(model, micro_batch or 12)[-1]
    plan = replace(levers(model, 12, micro_batch), segments=segments)
    history = memfit.fit(model, X, Y, batch_size=12, epochs=10, verbose=0, shuffle=False, plan=plan)
    for ours, theirs in zip(model.get_weights(), stock[0], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)
    for name, values in stock[1].items():
        np.testing.assert_allclose(history.history[name], values, rtol=2e-5, err_msg=name)


def test_mixed_precision_with_micro_batches_is_undone_afterwards() -> None:
    model = convolutions()
    plan = replace(levers(model, 12, 5), precision="mixed_bfloat16")
    history = memfit.fit(model, X, Y, batch_size=12, verbose=0, plan=plan)
    assert np.isfinite(history.history["loss"][0])
    assert {layer.dtype_policy.name for layer in model.layers} == {"float32"}
    assert int(model.optimizer.iterations) == 2
