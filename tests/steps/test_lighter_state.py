"""The user's own optimizer with a lighter state for a while: the same object, and its own state afterwards."""

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import memfit
from memfit.steps.lighter_state import LighterState, lighten
from memfit.steps.precision import MixedPrecision
from memfit.steps.recipe import Recipe
from prepared import in_arena

X = np.random.default_rng(0).normal(size=(64, 40)).astype("float32")
Y = np.random.default_rng(1).normal(size=(64, 3)).astype("float32")


def _model(optimizer: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    hidden = [keras.layers.Dense(200, activation="relu"), keras.layers.Dense(50)]
    model = keras.Sequential([keras.Input((40,)), *hidden, keras.layers.Dense(3)])
    model.compile(optimizer, "mse", jit_compile=False)
    return model


def _fit(model: keras.Model, epochs: int = 2, **arguments: Any) -> None:
    model.fit(X, Y, batch_size=16, epochs=epochs, shuffle=False, verbose=0, **arguments)


def _values(variables: Any) -> list[Any]:
    return [variable.numpy() for variable in variables]


def _assert_same(ours: list[Any], theirs: list[Any]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_adam_trains_as_adam8bit_and_is_itself_again_afterwards(tmp_path: Path) -> None:
    twin, ours = _model(memfit.optimizers.Adam8bit(0.003)), _model(keras.optimizers.Adam(0.003))
    optimizer = ours.optimizer
    plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=0, min_delta=100)
    with lighten(ours, "8-bit moments"):
        assert ours.optimizer is optimizer
        _fit(ours, callbacks=[plateau])
        assert {variable.dtype for variable in optimizer.variables} >= {"int8", "uint8"}
        ours.save(tmp_path / "meanwhile.keras")
    _fit(twin, callbacks=[keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=0, min_delta=100)])
    _assert_same(ours.get_weights(), twin.get_weights())
    assert float(optimizer.learning_rate) == pytest.approx(0.0015)
    assert int(optimizer.iterations) == 8
    assert not set(vars(optimizer)) & {"update_step", "ratio_codes", "memfit_lighter_state"}
    # What was saved meanwhile is a stock Adam's file, with the state that it has now.
    loaded = keras.models.load_model(tmp_path / "meanwhile.keras")
    assert type(loaded.optimizer) is keras.optimizers.Adam
    _assert_same(_values(loaded.optimizer.variables), _values(optimizer.variables))
    for model in (ours, loaded):
        _fit(model, 1)
    _assert_same(ours.get_weights(), loaded.get_weights())


def test_the_state_of_a_running_adam_is_taken_over_and_its_traced_step_still_works() -> None:
    model = _model(keras.optimizers.AdamW(0.003, use_ema=True))
    _fit(model)
    before, function = _values(model.optimizer.variables), model.train_function
    with lighten(model, "8-bit moments"):
        pass
    for a, b in zip(_values(model.optimizer.variables), before, strict=True):
        np.testing.assert_allclose(a, b, atol=0.02 * np.abs(b).max())
    model.train_function = function
    _fit(model, 1)
    assert np.isfinite(model.get_weights()[0]).all()


@pytest.mark.parametrize("before", [0, 1])
def test_an_adafactor_trains_bit_by_bit_as_keras_has_it(before: int) -> None:
    stock, ours = (_model(keras.optimizers.Adafactor(0.01)) for _ in range(2))
    _fit(stock, 3)
    if before:
        _fit(ours, before)
    with lighten(ours, "no velocity"):
        _fit(ours, 3 - before)
        kept = sum(variable.value.shape.num_elements() for variable in ours.optimizer.variables)
    assert kept < sum(weight.size for weight in ours.get_weights()) / 4
    _assert_same(ours.get_weights(), stock.get_weights())
    _assert_same(_values(ours.optimizer.variables), _values(stock.optimizer.variables))


def test_it_works_inside_of_loss_scaling_and_beside_mixed_precision() -> None:
    model = _model("adam")
    recipe = Recipe(changes=(MixedPrecision("mixed_float16"), LighterState("8-bit moments")))
    assert Recipe.from_json(recipe.to_json()) == recipe
    with recipe.applied(model):
        assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        _fit(model)
        assert "int8" in {variable.dtype for variable in model.optimizer.variables}
    assert int(model.optimizer.iterations) > 0
    assert type(model.optimizer) is keras.optimizers.Adam


@pytest.mark.parametrize(
    ("optimizer", "form", "why"),
    [
        ("sgd", "8-bit moments", "Adam and AdamW"),
        (keras.optimizers.Adam(amsgrad=True), "8-bit moments", "AMSGrad"),
        ("adam", "no velocity", "Adafactor"),
        ("adam", "4-bit moments", "one of 8-bit moments, no velocity"),
    ],
    ids=["sgd", "amsgrad", "adam", "form"],
)
def test_what_it_is_not_for_is_told(optimizer: Any, form: str, why: str) -> None:
    with pytest.raises(memfit.InvalidInput, match=why), lighten(_model(optimizer), form):
        pass


def _hand_back_without_memory() -> tuple[list[str], set[str], set[str], bool]:
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2**19), keras.layers.Dense(1)])
    model.compile("adam", "mse", jit_compile=False)
    x, y = np.ones((2, 8), "float32"), np.ones((2, 1), "float32")
    warnings: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("memfit").addHandler(handler)
    with lighten(model, "8-bit moments"):
        model.train_on_batch(x, y)
        held = []
        while tf.config.experimental.get_memory_info("CPU:0")["current"] < 116 * 2**20:
            held.append(tf.fill([2**18], 1.0))  # small enough for any gap
    light = {variable.dtype for variable in model.optimizer.variables}
    held.clear()
    model.train_on_batch(x, y)
    with lighten(model, "8-bit moments"):
        model.train_on_batch(x, y)
    kinds = {variable.dtype for variable in model.optimizer.variables}
    return warnings, light, kinds, bool(np.isfinite(model.get_weights()[0]).all())


def test_where_there_is_no_memory_to_give_it_back_it_goes_on_with_less() -> None:
    warnings, light, kinds, finite = in_arena(_hand_back_without_memory, memory="128MiB")
    assert len(warnings) == 1
    assert "continues with 8-bit moments" in warnings[0]
    assert "int8" in light
    assert "int8" not in kinds
    assert finite


def test_a_process_without_keras_reads_and_shows_a_recipe_and_does_not_apply_it() -> None:
    written = json.dumps(
        Recipe(changes=(LighterState("8-bit moments"), MixedPrecision("mixed_bfloat16"))).to_json()
    )
    code = (
        "import json, sys; from memfit.steps.recipe import Recipe\n"
        "recipe = Recipe.from_json(json.loads(sys.argv[1]))\n"
        "assert 'keras' not in sys.modules; print(recipe); print(json.dumps(recipe.to_json()))\n"
        "try: recipe.changes[0].applied(None)\n"
        "except Exception as error: print(error)"
    )
    command = [sys.executable, "-c", code, written]
    shown, again, refused = subprocess.run(
        command, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert "8-bit moments, mixed_bfloat16" in shown
    assert json.loads(again) == json.loads(written)
    assert refused.startswith(
        "The plan contains a change that is not known here. Received: 'optimizer state'."
    )
