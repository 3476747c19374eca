"""Under guard and undisturbed, a training is stock Keras's."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import memfit
from memfit.steps.rematerialisation import find_choices
from training.parity import levers

RANDOM = np.random.default_rng(6)
X = RANDOM.normal(size=(22, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def network(**compiling: Any) -> keras.Model:
    keras.utils.set_random_seed(2)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(6),
            layers.BatchNormalization(),
            layers.Dropout(0.2),
            layers.Activation("tanh"),
            layers.Dense(1),
        ]
    )
    model.compile(
        **{"optimizer": keras.optimizers.Adam(0.01), "loss": "mse", "metrics": ["mae"], **compiling}
    )
    return model


@pytest.mark.parametrize("compiling", [{}, {"steps_per_execution": 2}, {"run_eagerly": True}])
def test_undisturbed_it_is_the_training_of_stock_keras(compiling: dict[str, Any]) -> None:
    how = {"x": X, "y": Y, "batch_size": 8, "epochs": 3, "validation_data": (X, Y), "verbose": 0}
    stock = network(**compiling)
    stock_history = stock.fit(**how, shuffle=False)
    model = network(**compiling)
    history = memfit.fit(model, **how, shuffle=False, plan=levers(model, 8))
    for name, values in stock_history.history.items():
        np.testing.assert_allclose(history.history[name], values, rtol=1e-5, err_msg=name)
    pairs = [*zip(stock.variables, model.variables, strict=True)]
    pairs += zip(stock.optimizer.variables, model.optimizer.variables, strict=True)
    for a, b in pairs:
        np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=1e-4, atol=1e-6, err_msg=a.path)
    assert history.memory.events == ()


def test_a_further_call_does_not_trace_again() -> None:
    calls: list[int] = []

    class Counted(layers.Layer):
        def call(self, x: Any) -> Any:
            calls.append(1)
            return x

    model = keras.Sequential([keras.Input((4,)), Counted(), layers.Dense(1)])
    model.compile("sgd", "mse")
    plan = levers(model, 8)
    memfit.fit(model, X, Y, batch_size=8, verbose=0, plan=plan, validation_data=(X, Y))
    calls.clear()
    memfit.fit(model, X, Y, batch_size=8, verbose=0, plan=plan, validation_data=(X, Y))
    assert calls == []
    model.compile("sgd", "mse")
    memfit.fit(model, X, Y, batch_size=8, verbose=0, plan=plan)
    assert calls


def test_under_a_distribution_strategy_there_is_no_guard_and_the_run_says_so() -> None:
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        model = network()
    history = memfit.fit(model, X, Y, batch_size=8, verbose=0, plan=levers(model, 8))
    assert "without the guard" in str(history.memory.events[0])
    assert int(model.optimizer.iterations) == 3


def test_a_plan_that_changes_the_step_is_refused_under_a_strategy_that_keeps_copies_of_variables() -> None:
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = network()
    with pytest.raises(memfit.InvalidInput, match="MirroredStrategy runs its steps"):
        memfit.fit(model, X, Y, batch_size=8, verbose=0, plan=levers(model, 8, micro_batch=4))
    memfit.fit(model, X, Y, batch_size=8, verbose=0)
    assert model.optimizer.iterations.numpy() == 3


class Loop(layers.Layer):
    """A loop in a function of its own, which TensorFlow traces once and for any executor but one."""

    @tf.function
    def grown(self, x: Any) -> Any:
        for _ in tf.range(3):
            x = x * 1.01
        return x

    def call(self, x: Any) -> Any:
        return self.grown(x)


def test_a_loop_that_was_traced_before_cannot_run_one_by_one_and_trains_all_the_same() -> None:
    histories = []
    x, y = np.ones((16, 16, 16, 3), "float32"), np.ones((16, 1), "float32")
    for planned in (False, True):
        keras.backend.clear_session()
        keras.utils.set_random_seed(1)
        body = [layers.Conv2D(8, 3, padding="same", activation="relu") for _ in range(4)]
        model = keras.Sequential(
            [keras.Input((16, 16, 3)), *body, Loop(), layers.GlobalAveragePooling2D(), layers.Dense(1)]
        )
        model.compile("sgd", "mse", jit_compile=False)
        tf.function(lambda x, model=model: model(x, training=True))(x[:8])  # here the loop is traced
        arguments: dict[str, Any] = {"batch_size": 8, "epochs": 2, "verbose": 0, "shuffle": False}
        if planned:
            plan = levers(model, 8, segments=find_choices(model, 8)[-1])
            history = memfit.fit(model, x, y, plan=plan, **arguments)
        else:
            history = model.fit(x, y, **arguments)
        histories.append(history.history["loss"])
    np.testing.assert_allclose(histories[1], histories[0], rtol=1e-5)
