"""Data of unknown length: at its end stock Keras runs all of a step that needs no batch, and so does memfit."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, optimizers

import memfit
from memfit.steps.rematerialisation import find_choices
from training.parity import levers

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(22, 6))
Y = X.sum(axis=1, keepdims=True)
Make = Callable[[], keras.Model]

pytestmark = [
    pytest.mark.usefixtures("in_float64"),
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
]


def batches(*, known: bool = False, fixed: bool = False, samples: int = 22) -> Any:
    """Batches of 8, a short one at the end unless they are of a fixed size."""
    data = tf.data.Dataset.from_tensor_slices((X[:samples], Y[:samples]))
    return (data if known else data.filter(lambda *_: True)).batch(8, drop_remainder=fixed)


def network(optimizer: Any = "sgd", *inner: Any, **compiling: Any) -> Make:
    """A network with some layers in it; by default those that keep random numbers and statistics."""

    def make() -> keras.Model:
        keras.utils.set_random_seed(4)
        between = [layer() for layer in inner] or [layers.BatchNormalization(), layers.Dropout(0.4)]
        model = keras.Sequential([keras.Input((6,)), layers.Dense(8), *between, layers.Dense(1)])
        chosen = optimizer() if callable(optimizer) else optimizer
        model.compile(
            **{"optimizer": chosen, "loss": "mse", "metrics": ["mae"], "jit_compile": False} | compiling
        )
        return model

    return make


def assert_as_stock(make: Make, data: Any, plan: Any = lambda model: None, **options: Any) -> keras.Model:
    """Trains 3 epochs in stock Keras and in memfit, and compares losses, weights, seeds and optimizer."""
    how = {"epochs": 3, "verbose": 0, **options}
    stock = make()
    expected = stock.fit(data, **how).history
    model = make()
    history = memfit.fit(model, data, plan=plan(model), **how)
    for name, values in expected.items():
        np.testing.assert_allclose(history.history[name], values, rtol=1e-9, err_msg=name)
    pairs = [*zip(stock.variables, model.variables, strict=True)]
    pairs += zip(stock.optimizer.variables, model.optimizer.variables, strict=True)
    for theirs, ours in pairs:
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12, err_msg=theirs.path)
    assert history.memory.events == ()
    return model


@pytest.mark.parametrize("samples", [22, 16])
def test_seeds_and_iterations_go_on_as_in_stock_keras_with_and_without_a_short_last_batch(
    samples: int,
) -> None:
    model = assert_as_stock(network(), batches(samples=samples))
    assert int(model.optimizer.iterations) == 3 * (-(-samples // 8) + 1)


def test_where_the_length_is_known_there_is_one_step_for_each_batch() -> None:
    model = assert_as_stock(network(), batches(known=True))
    assert int(model.optimizer.iterations) == 3 * 3


def test_micro_batches_end_with_the_seeds_of_the_whole_batch() -> None:
    make = network("sgd", lambda: layers.Dropout(0.4), lambda: layers.GaussianNoise(0.1))
    assert_as_stock(make, batches(), lambda model: levers(model, 8, 3))


def test_rematerialised_steps_too() -> None:
    body = [lambda: layers.Dense(8, activation="tanh"), lambda: layers.Dropout(0.3)] * 3
    make = network("adam", *body)
    assert_as_stock(make, batches(), lambda model: levers(model, 8, segments=find_choices(model, 8)[-1]))


@pytest.mark.parametrize(
    "compiling", [{"steps_per_execution": 2}, {"run_eagerly": True}, {"jit_compile": True}], ids=str
)
def test_where_keras_reads_before_its_step_nothing_runs_at_the_end(compiling: dict[str, Any]) -> None:
    model = assert_as_stock(network(**compiling), batches())
    assert int(model.optimizer.iterations) == 3 * 3


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "weight decay and a schedule": lambda: optimizers.AdamW(
        optimizers.schedules.ExponentialDecay(0.05, 2, 0.9), weight_decay=0.1
    ),
    "the momentum of Nadam": lambda: optimizers.Nadam(0.01),
    "accumulated gradients": lambda: optimizers.AdamW(0.01, weight_decay=0.1, gradient_accumulation_steps=3),
    "averaged weights": lambda: optimizers.SGD(0.01, use_ema=True, ema_overwrite_frequency=5),
    "a loss scale": lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.01)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("micro_batch", [None, 4])
def test_optimizers_do_what_they_do_without_a_gradient(name: str, micro_batch: int | None) -> None:
    make = network(OPTIMIZERS[name], lambda: layers.Dropout(0.4))
    assert_as_stock(make, batches(), lambda model: levers(model, 8, micro_batch))


def test_layers_that_change_their_weights_without_a_batch_do_so() -> None:
    assert_as_stock(network("sgd", lambda: layers.SpectralNormalization(layers.Dense(8))), batches())


def test_batches_of_a_fixed_size_are_counted_once_more_in_training_and_validation() -> None:
    data = batches(fixed=True)
    assert_as_stock(network(), data, lambda model: levers(model, 8), validation_data=data)
    stock, model = network()(), network()()
    assert memfit.evaluate(model, data, verbose=0) == pytest.approx(stock.evaluate(data, verbose=0), rel=1e-9)


class OwnStep(keras.Model):
    def train_step(self, data: Any) -> Any:
        noise = keras.random.normal(tf.shape(data[0]), seed=self.own_seed)
        return super().train_step((data[0] + 0.1 * noise, data[1]))


def test_a_custom_train_step_too() -> None:
    def make() -> keras.Model:
        keras.utils.set_random_seed(4)
        inputs = keras.Input((6,))
        model = OwnStep(inputs, layers.Dense(1)(layers.Dropout(0.2)(inputs)))
        model.own_seed = keras.random.SeedGenerator(3)
        model.compile("adam", "mse", jit_compile=False)
        return model

    assert_as_stock(make, batches())


def test_a_generator_ends_as_a_dataset_does() -> None:
    def generate() -> Any:
        yield from batches().as_numpy_iterator()

    stock, model = network()(), network()()
    expected = stock.fit(generate(), epochs=1, verbose=0).history["loss"]
    assert memfit.fit(model, generate(), epochs=1, verbose=0).history["loss"] == pytest.approx(
        expected, rel=1e-9
    )
    assert int(model.optimizer.iterations) == int(stock.optimizer.iterations) == 4


def test_a_further_call_does_not_trace_again() -> None:
    calls: list[int] = []

    class Counted(layers.Layer):
        def call(self, x: Any) -> Any:
            calls.append(1)
            return x

    model = network("sgd", Counted)()
    plan = levers(model, 8)
    memfit.fit(model, batches(), epochs=2, verbose=0, validation_data=batches(), plan=plan)
    calls.clear()
    memfit.fit(model, batches(), epochs=2, verbose=0, validation_data=batches(), plan=plan)
    assert calls == []


class ShortAtTheEnd(keras.Model):
    """Memory runs out in Keras's own step, which memfit calls at the end of the data alone."""

    def make_train_function(self, force: bool = False) -> None:
        def short(iterator: Any) -> Any:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[9,9]")

        super().make_train_function(force)
        if force:
            self.train_function = short


def test_memory_that_runs_out_at_the_end_is_said_and_does_not_end_the_training() -> None:
    inputs = keras.Input((6,))
    model = ShortAtTheEnd(inputs, layers.Dense(1)(inputs))
    model.compile("sgd", "mse", jit_compile=False)
    history = memfit.fit(model, batches(), epochs=2, verbose=0)
    assert len(history.history["loss"]) == 2
    assert "what needs no batch" in str(history.memory.events[0])
