"""What each optimizer of Keras keeps, against the optimizer itself built on the same weights."""

import inspect
import math
from typing import Any

import keras
import pytest
import tensorflow as tf

import memfit
from memfit.errors import CannotTell
from memfit.planning.optimizer_sizes import kept_by


def list_optimizers() -> dict[str, Any]:
    """Returns Keras's optimizers by name, without those that need another optimizer to be made."""
    return {
        name: value
        for name, value in vars(keras.optimizers).items()
        if inspect.isclass(value)
        and issubclass(value, keras.optimizers.Optimizer)
        and all(
            parameter.default is not parameter.empty or parameter.kind is parameter.VAR_KEYWORD
            for parameter in inspect.signature(value).parameters.values()
        )
    }


def _weights() -> list[Any]:
    inputs = keras.Input((9,), dtype="int32")
    outputs = keras.layers.Embedding(50, 6)(inputs)
    outputs = keras.layers.Conv1D(8, 3)(outputs)
    outputs = keras.layers.BatchNormalization()(outputs)
    outputs = keras.layers.Dense(4)(keras.layers.Flatten()(outputs))
    return keras.Model(inputs, outputs).trainable_variables


def _built(optimizer: Any, weights: list[Any]) -> int:
    optimizer.build(weights)
    slots = [slot for slot in optimizer.variables if len(slot.shape)]
    return sum(math.prod(slot.shape) * tf.as_dtype(slot.dtype).size for slot in slots)


@pytest.mark.parametrize("name", list_optimizers())
def test_every_optimizer_keeps_what_it_is_said_to_keep(name: str) -> None:
    weights = _weights()
    kind = list_optimizers()[name]
    assert kept_by(kind, weights) == _built(kind(), weights)


@pytest.mark.parametrize(
    "optimizer",
    [
        keras.optimizers.SGD(momentum=0.9),
        keras.optimizers.SGD(use_ema=True),
        keras.optimizers.Adam(amsgrad=True, gradient_accumulation_steps=2),
        keras.optimizers.RMSprop(
            keras.optimizers.schedules.CosineDecay(0.1, 10), centered=True, momentum=0.5
        ),
        keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()),
    ],
)
def test_an_optimizers_settings_count_and_it_stays_as_it_is(optimizer: Any) -> None:
    weights = _weights()
    said = kept_by(optimizer, weights)
    assert not optimizer.built
    assert said == _built(optimizer, weights)
    assert said > 0


def test_the_known_ones_are_listed_and_none_is_said_to_keep_less_than_sgd() -> None:
    optimizers = list_optimizers()
    assert {"SGD", "Adam", "AdamW", "Lion", "Adafactor", "RMSprop"} <= set(optimizers)
    assert kept_by(optimizers["SGD"], _weights()) == 0


def test_adafactor_keeps_more_than_one_copy_of_the_weights() -> None:
    weights = _weights()
    copy = sum(4 * math.prod(weight.shape) for weight in weights)
    assert kept_by(keras.optimizers.Adafactor, weights) > copy
    assert kept_by(keras.optimizers.Lion, weights) == copy
    assert kept_by(keras.optimizers.Adam, weights) == 2 * copy


def test_weights_in_half_precision_keep_half() -> None:
    whole, half = (
        keras.Variable("zeros", (64, 32), dtype, name="kernel") for dtype in ("float32", "float16")
    )
    assert kept_by(keras.optimizers.Adam, [whole]) == 2 * kept_by(keras.optimizers.Adam, [half])


class Uncopyable(keras.optimizers.SGD):
    def __init__(self, special: int) -> None:
        super().__init__(0.1, momentum=0.9)
        self.special = special


def test_an_optimizer_that_cannot_be_copied_is_told_and_does_not_spoil_a_plan() -> None:
    with pytest.raises(CannotTell, match=r"Uncopyable cannot be copied .* get_config"):
        kept_by(Uncopyable(3), _weights())
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
    model.compile(Uncopyable(3), "mse")
    plan = memfit.plan(model, batch_size=8192, memory="4MiB")
    row = next(lever for lever in plan.levers if lever.name == "optimizer state")
    assert not row.used
