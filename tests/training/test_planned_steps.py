"""Plans with several levers at once: the steps they describe train as stock Keras does."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import memfit
from memfit.planning.layer_names import layer_names, with_names_of
from memfit.steps.precision import MixedPrecision
from memfit.steps.rematerialisation import find_choices
from training.parity import levers

RNG = np.random.default_rng(4)
X = RNG.normal(size=(24, 16, 4)).astype("float32")
Y = RNG.integers(0, 3, 24)


def convolutions() -> keras.Model:
    x = inputs = keras.Input((16, 4))
    for _ in range(4):
        x = layers.Conv1D(8, 3, padding="same", activation="relu", kernel_regularizer="l2")(x)
    x = layers.Dense(3, activation="softmax")(layers.GlobalAveragePooling1D()(x))
    model = keras.Model(inputs, x)
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


def nested() -> keras.Model:
    """Layers that Keras names, in a nested model that is called twice, and ops named like layers."""
    inner_inputs = keras.Input((16, 8))
    x = layers.Add()([layers.Conv1D(8, 3, padding="same", activation="relu")(inner_inputs), inner_inputs])
    inner = keras.Model(inner_inputs, layers.BatchNormalization()(x))
    x = inputs = keras.Input((16, 4))
    x = layers.Conv1D(8, 3, padding="same", activation="relu")(x)
    x = inner(layers.Conv1D(8, 3, padding="same", activation="relu")(inner(x)))
    x = layers.Add()([x, layers.BatchNormalization()(layers.Conv1D(8, 3, padding="same")(x))])
    x = layers.Dense(3, activation="softmax")(layers.GlobalAveragePooling1D()(x))
    model = keras.Model(inputs, x)
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", jit_compile=False)
    return model


@pytest.fixture(scope="module")
def stock() -> tuple[list[Any], dict[str, list[float]]]:
    keras.utils.set_random_seed(5)
    model = convolutions()
    history = model.fit(X, Y, batch_size=12, epochs=4, verbose=0, shuffle=False)
    return model.get_weights(), history.history


@pytest.mark.parametrize("micro_batch", [None, 5])
def test_rematerialised_segments_with_and_without_micro_batches(
    stock: tuple[list[Any], dict[str, list[float]]], micro_batch: int | None
) -> None:
    keras.utils.set_random_seed(5)
    model = convolutions()
    segments = find_choices(model, micro_batch or 12)[-1]
    plan = levers(model, 12, micro_batch, segments=segments)
    history = memfit.fit(model, X, Y, batch_size=12, epochs=4, verbose=0, shuffle=False, plan=plan)
    for ours, theirs in zip(model.get_weights(), stock[0], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)
    for name, values in stock[1].items():
        np.testing.assert_allclose(history.history[name], values, rtol=2e-5, err_msg=name)


def test_mixed_precision_with_micro_batches_is_undone_afterwards() -> None:
    model = convolutions()
    plan = levers(model, 12, 5, changes=(MixedPrecision("mixed_bfloat16"),))
    history = memfit.fit(model, X, Y, batch_size=12, verbose=0, plan=plan)
    assert np.isfinite(history.history["loss"][0])
    assert {layer.dtype_policy.name for layer in model.layers} == {"float32"}
    assert int(model.optimizer.iterations) == 2


def test_a_saved_plan_holds_for_the_same_network_whose_layers_keras_numbers_otherwise(tmp_path: Path) -> None:
    keras.utils.set_random_seed(5)
    made_for = nested()
    segments = find_choices(made_for, 12)[-1]
    assert segments.starts or segments.kept
    plan = replace(levers(made_for, 12, segments=segments), layer_names=layer_names(made_for))
    plan.save(tmp_path / "plan.json")
    convolutions()
    keras.utils.set_random_seed(5)
    again, stock = nested(), nested()
    stock.set_weights(again.get_weights())
    assert layer_names(again) != plan.layer_names
    saved = memfit.Plan.load(tmp_path / "plan.json")
    memfit.fit(again, X, Y, verbose=0, shuffle=False, plan=saved)
    stock.fit(X, Y, batch_size=12, verbose=0, shuffle=False)
    for ours, theirs in zip(again.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)
    # What the names say is what is kept: the same tensors as segments chosen for this model.
    chosen = find_choices(again, 12)[-1]
    renamed = with_names_of(again, segments, plan.layer_names)
    assert (renamed.starts, renamed.kept) == (chosen.starts, chosen.kept)


def test_a_plan_without_the_names_of_layers_says_that_they_are_others() -> None:
    plan = levers(made_for := nested(), 12, segments=find_choices(made_for, 12)[-1])
    with pytest.raises(memfit.InvalidInput, match="the same layer names"):
        memfit.fit(nested(), X, Y, verbose=0, plan=plan)


@pytest.mark.parametrize("plan", [False, True])
def test_a_trained_model_can_be_estimated_and_copied_again(plan: bool) -> None:
    model = convolutions()
    chosen = levers(model, 12, micro_batch=5) if plan else None
    memfit.fit(model, X, Y, batch_size=12, plan=chosen, verbose=0, validation_data=(X, Y))
    assert memfit.estimate(model, 12).peak > 0
    assert keras.models.clone_model(model).count_params() == copy.deepcopy(model).count_params()
