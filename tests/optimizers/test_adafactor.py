"""memfit's Adafactor is Keras's, bit by bit, with less state."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import memfit

SHAPES = [(16, 24), (17,), (3, 3, 4, 5), ()]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"clip_threshold": 0.5, "relative_step": False, "weight_decay": 0.01, "clipnorm": 1.0},
    {"use_ema": True, "ema_overwrite_frequency": 2, "global_clipnorm": 0.5, "beta_2_decay": -0.5},
    {"gradient_accumulation_steps": 2},
    {"learning_rate": keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5), "clipvalue": 0.7},
]


def _train(cls: Any, dtype: str, compiled: bool | None, **settings: Any) -> tuple[list[Any], Any]:
    random = np.random.default_rng(3)
    variables = [keras.Variable(random.normal(size=shape), dtype=dtype) for shape in SHAPES]
    optimizer = cls(**settings)
    optimizer.build(variables)

    def step(*gradients: Any) -> None:
        optimizer.apply(list(gradients), variables)

    run = step if compiled is None else tf.function(step, jit_compile=compiled, autograph=False)
    for _ in range(4):
        run(*(tf.constant(random.normal(size=shape), dtype) for shape in SHAPES))
    return [variable.numpy() for variable in variables], optimizer


CASES = [
    ("float32", None, SETTINGS[0]),
    *(("float32", False, settings) for settings in SETTINGS),
    *(("float64", False, settings) for settings in SETTINGS[:2]),
    ("float32", True, SETTINGS[1]),  # XLA takes seconds to compile each
]


@pytest.mark.parametrize(
    ("dtype", "compiled", "settings"), CASES, ids=[str(number) for number in range(len(CASES))]
)
def test_it_computes_the_same_bits_as_keras(
    dtype: str, compiled: bool | None, settings: dict[str, Any]
) -> None:
    stock, _ = _train(keras.optimizers.Adafactor, dtype, compiled, **settings)
    ours, _ = _train(memfit.optimizers.Adafactor, dtype, compiled, **settings)
    for a, b in zip(stock, ours, strict=True):
        np.testing.assert_array_equal(b, a)


def test_it_keeps_no_velocity_for_what_has_factors() -> None:
    _, stock = _train(keras.optimizers.Adafactor, "float32", None)
    _, ours = _train(memfit.optimizers.Adafactor, "float32", None)
    sizes = [sum(v.value.shape.num_elements() for v in o.variables) for o in (stock, ours)]
    assert sizes[0] - sizes[1] == 16 * 24 + 3 * 3 * 4 * 5


def test_it_is_saved_and_loaded_with_the_model(tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(9), keras.layers.Dense(1)])
    model.compile(memfit.optimizers.Adafactor(0.01, clip_threshold=0.7), "mse")
    x, y = np.ones((4, 8), "float32"), np.ones((4, 1), "float32")
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is memfit.optimizers.Adafactor
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    for each in (model, loaded):
        each.fit(x, y, verbose=0)
    for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(b, a)
