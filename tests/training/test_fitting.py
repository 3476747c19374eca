"""`fit` is Keras's: same data in, same calls and history out, and the model's own functions left alone."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import memfit
from memfit.errors import StepFailed
from memfit.training.batches import batch_size_of, look_ahead
from prepared import run_forked
from training.parity import Diary, assert_same_training, levers, train_both_ways

RNG = np.random.default_rng(1)
X = RNG.normal(size=(20, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def linear(**compiling: Any) -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3, activation="tanh"), layers.Dense(1)])
    model.compile(**{"optimizer": keras.optimizers.SGD(0.1), "loss": "mse", "metrics": ["mae"], **compiling})
    return model


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return X[index * 8 : index * 8 + 8], Y[index * 8 : index * 8 + 8]


def generated() -> Iterator[tuple[Any, Any]]:
    while True:
        yield X[:8], Y[:8]
        yield X[8:13], Y[8:13]


SOURCES = {
    "arrays": (lambda: {"x": X, "y": Y, "batch_size": 8, "epochs": 2}, 6),
    "tensors": (lambda: {"x": tf.constant(X), "y": tf.constant(Y), "batch_size": 8, "epochs": 2}, 6),
    "dataset": (lambda: {"x": tf.data.Dataset.from_tensor_slices((X, Y)).batch(8), "epochs": 2}, 6),
    "known shapes": (
        lambda: {"x": tf.data.Dataset.from_tensor_slices((X, Y)).batch(4, drop_remainder=True)},
        5,
    ),
    "PyDataset": (lambda: {"x": Batches(), "epochs": 2}, 6),
    "generator": (lambda: {"x": generated(), "steps_per_epoch": 3, "epochs": 2}, 6),
}


@pytest.mark.parametrize("source", SOURCES)
def test_any_source_of_data_trains_as_in_stock_keras(source: str) -> None:
    fit, updates = SOURCES[source]
    assert_same_training(linear, fit, batch_size=8, micro_batch=3, updates=updates)


def test_the_batch_size_of_data_is_known_without_reading_it() -> None:
    data = tf.data.Dataset.from_tensor_slices((X, Y))
    assert batch_size_of(X, None) == 32
    assert batch_size_of(X, 7) == 7
    for source in (Batches(), generated()):
        same, first = look_ahead(source)
        assert batch_size_of(same, None, first) == 8
    assert batch_size_of(data.batch(6).map(lambda x, y: (x, y)).prefetch(2), None) == 6
    assert batch_size_of(data.batch(5, drop_remainder=True), None) == 5
    with pytest.raises(memfit.InvalidInput, match="plan="):
        batch_size_of(tf.data.Dataset.from_generator(generated, (tf.float32, tf.float32)), None)


class Augmented(Batches):
    """Draws random numbers for every batch, and another order for every epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.order = np.arange(3)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        x, y = super().__getitem__(int(self.order[index]))
        return x + np.random.normal(size=x.shape).astype("float32"), y

    def on_epoch_end(self) -> None:
        np.random.shuffle(self.order)


def noise(model: keras.Model, data: Any) -> Any:
    return keras.random.normal(tf.shape(data), seed=model.seeds)


class WithoutCall(keras.Model):
    """Calls only its parts, and takes what it is given apart as if it were all there is."""

    def __init__(self) -> None:
        super().__init__()
        self.part = linear()
        self.seeds = keras.random.SeedGenerator(1)
        self.tracker = keras.metrics.Mean(name="loss")

    def compile(self, own_optimizer: Any) -> None:
        super().compile()
        self.own_optimizer = own_optimizer

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.part(data + noise(self, data))))
        weights = self.part.trainable_weights
        self.own_optimizer.apply(tape.gradient(loss, weights), weights)
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


def without_call() -> keras.Model:
    model = WithoutCall()
    model.compile(keras.optimizers.Adam())
    return model


TRAININGS = {
    "random numbers in a PyDataset": (linear, lambda: {"x": Augmented(), "epochs": 3}),
    "a generator": (linear, lambda: {"x": ((X[:8] * n, Y[:8]) for n in range(9)), "steps_per_epoch": 4}),
    "no call": (without_call, lambda: {"x": tf.data.Dataset.from_tensor_slices(X).batch(8)}),
}


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("memory", [None, "512MiB"])
def test_a_training_that_fits_is_stock_keras_s(training: str, memory: str | None) -> None:
    make, fit = TRAININGS[training]
    keras.utils.set_random_seed(3)
    stock = make()
    expected = stock.fit(**fit(), shuffle=False, verbose=0).history
    keras.utils.set_random_seed(3)
    model = make()
    history = memfit.fit(model, **fit(), memory=memory, shuffle=False, verbose=0)
    assert history.memory.plan.changes_nothing
    assert history.memory.events == ()
    assert {name: pytest.approx(values, rel=1e-5) for name, values in expected.items()} == history.history
    for ours, theirs in zip(model.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert model.optimizer.built == stock.optimizer.built


def test_a_generator_without_a_batch_is_refused() -> None:
    with pytest.raises(memfit.InvalidInput, match="at least one sample"):
        memfit.fit(linear(), (batch for batch in ()), verbose=0)


def test_callbacks_get_the_same_calls_with_the_same_logs() -> None:
    diaries: list[Diary] = []

    def fit() -> dict[str, Any]:
        diaries.append(Diary())
        return {
            "x": X,
            "y": Y,
            "batch_size": 8,
            "initial_epoch": 1,
            "epochs": 3,
            "validation_data": (X[:10], Y[:10], np.linspace(0, 1, 10)),
            "callbacks": [diaries[-1]],
        }

    *_, history = train_both_ways(linear, fit, batch_size=8, micro_batch=3, validation_batch=4)
    stock, ours = (diary.pages for diary in diaries)
    assert [name for name, _ in ours] == [name for name, _ in stock]
    assert "on_test_batch_end" in {name for name, _ in ours}
    for (_, a), (name, b) in zip(stock, ours, strict=True):
        assert len(a) == len(b)
        for left, right in zip(a, b, strict=True):
            if isinstance(left, dict):
                assert list(left) == list(right), name
                np.testing.assert_allclose(list(right.values()), list(left.values()), rtol=2e-5, err_msg=name)
            else:
                assert left == right
    assert history.epoch == [1, 2]


def test_a_job_without_levers_runs_the_functions_that_keras_compiled() -> None:
    model = linear()
    model.fit(X, Y, verbose=0)
    compiled = model.train_function
    history = memfit.fit(model, X, Y, verbose=0, plan=levers(model, 32))
    assert model.train_function is compiled
    assert isinstance(history, keras.callbacks.History)
    assert history.memory.plan == levers(model, 32)


def test_the_model_has_its_own_step_back_whatever_happens() -> None:
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            raise KeyboardInterrupt

    model = linear()
    model.fit(X, Y, verbose=0)
    compiled = model.train_function
    attributes = set(vars(model))
    with pytest.raises(KeyboardInterrupt):
        memfit.fit(model, X, Y, verbose=0, callbacks=[Stop()], plan=levers(model, 32, 3, 3))
    assert model.train_function is compiled
    assert set(vars(model)) == attributes
    assert model.train_step.__func__ is keras.Model.train_step


def test_where_no_plan_can_be_made_and_no_memory_was_asked_for_it_trains_as_stock_keras() -> None:
    model = linear()
    specs = tf.TensorSpec((None, 4)), tf.TensorSpec((None, 1))
    data = tf.data.Dataset.from_generator(generated, output_signature=specs)
    history = memfit.fit(model, data, steps_per_epoch=2, shuffle=False, verbose=0)
    assert history.memory.plan is None
    assert "no plan could be made" in str(history.memory.events[0])
    with pytest.raises(memfit.InvalidInput, match="plan="):
        memfit.fit(model, data, steps_per_epoch=2, verbose=0, memory="1GiB")


def test_a_job_that_clearly_fits_is_planned_without_a_lever() -> None:
    history = memfit.fit(linear(), X, Y, verbose=0)
    assert history.memory.plan.changes_nothing
    assert history.memory.to_json()["plan"]["batch_size"] == 32
    assert "measured peak" in repr(history.memory)


def test_a_nan_loss_goes_where_keras_lets_it_go() -> None:
    make = lambda: linear(optimizer=keras.optimizers.SGD(1e20))  # noqa: E731
    fit = lambda: {"x": X, "y": Y, "epochs": 4, "callbacks": [keras.callbacks.TerminateOnNaN()]}  # noqa: E731
    stock, fitted, stock_history, history = train_both_ways(make, fit, micro_batch=3, batch_size=32)
    assert len(history.epoch) == len(stock_history.epoch) < 4
    for a, b in zip(stock.variables, fitted.variables, strict=True):
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))


def test_batch_normalization_moves_once_for_every_part() -> None:
    model = keras.Sequential([keras.Input((4,)), layers.BatchNormalization(momentum=0.5), layers.Dense(1)])
    model.compile("sgd", "mse")
    memfit.fit(model, X, Y, batch_size=20, verbose=0, shuffle=False, plan=levers(model, 20, 8))
    mean = np.zeros(4)
    for part in (X[:8], X[8:16], X[16:]):
        mean = 0.5 * mean + 0.5 * part.mean(axis=0)
    np.testing.assert_allclose(model.layers[0].moving_mean, mean, rtol=1e-5)


def test_every_part_has_its_own_dropout_mask() -> None:
    seen: list[np.ndarray] = []

    class Watch(layers.Layer):
        def call(self, x: Any) -> Any:
            if tf.is_tensor(x) and tf.executing_eagerly():
                seen.append(np.asarray(x))
            return x

    model = keras.Sequential([keras.Input((4,)), layers.Dropout(0.5, seed=3), Watch(), layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    seen.clear()
    memfit.fit(
        model, np.ones((64, 4)), np.ones((64, 1)), batch_size=64, verbose=0, plan=levers(model, 64, 32)
    )
    first, second = seen[-2:]
    assert not np.array_equal(first, second)
    assert 0.3 < np.mean(first == 0) < 0.7


class OwnStep(keras.Sequential):
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


def refused(model: Any, **arguments: Any) -> str:
    weights = [w.numpy() for w in model.variables] if isinstance(model, keras.Model) else []
    attributes = set(vars(model))
    with pytest.raises(memfit.InvalidInput) as error:
        memfit.fit(model, **{"x": X, "y": Y, "verbose": 0, **arguments})
    assert set(vars(model)) == attributes
    for before, after in zip(weights, model.variables if weights else [], strict=True):
        np.testing.assert_array_equal(before, after)
    return str(error.value)


def test_bad_input_is_refused_in_one_sentence_and_leaves_the_model_as_it_was() -> None:
    own = OwnStep([keras.Input((4,)), layers.Dense(1)])
    own.compile("sgd", "mse")
    assert "train_step is custom" in refused(own, plan=levers(own, 32, 8))
    model = linear()
    assert "not both" in refused(model, plan=levers(model, 32), memory="1GiB")
    assert "one batch size" in refused(model, plan=levers(model, 32, 8), batch_size=16)
    assert "the model it was made for" in refused(model, plan=levers(own, 32, 8))
    with pytest.raises(memfit.InvalidInput, match="at least 1"):
        levers(model, 32, 0)
    assert "at least one sample" in refused(model, x=X[:0], y=Y[:0])
    nothing = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8).take(0)
    assert "at least one sample" in refused(model, x=nothing, y=None)
    assert "models of Keras" in refused(object.__new__(type("Net", (), {})))


def test_a_scalar_in_the_data_is_refused_before_anything_is_learned() -> None:
    data = tf.data.Dataset.from_tensors((X, Y, tf.constant(2.0)))
    model = linear()
    before = model.get_weights()
    with pytest.raises(memfit.InvalidInput, match="first dimension"):
        memfit.fit(model, data, verbose=0, shuffle=False, plan=levers(model, 20, 8))
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert model.train_step.__func__ is keras.Model.train_step


def narrowing() -> Iterator[tuple[Any, Any]]:
    yield X[:8], Y[:8]
    yield X[:8, :3], Y[:8]


@pytest.mark.parametrize("micro_batch", [None, 4])
def test_data_that_changes_its_shape_is_refused_at_that_batch(micro_batch: int | None) -> None:
    stock, model = linear(jit_compile=False), linear(jit_compile=False)
    model.set_weights(stock.get_weights())
    stock.fit(X[:8], Y[:8], verbose=0, shuffle=False)
    with pytest.raises(memfit.InvalidInput, match=r"\(None, 4\).*\(8, 3\) in batch 2"):
        memfit.fit(model, narrowing(), verbose=0, shuffle=False, plan=levers(model, 8, micro_batch))
    for a, b in zip(stock.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


class Cropping(keras.Sequential):
    """Crops what it is given, and then fails for another reason."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        tf.debugging.assert_less(tf.reduce_sum(x), -1e9)
        return super().train_step((x[:, :4], y))


def test_another_failure_of_a_custom_train_step_is_not_taken_for_a_shape() -> None:
    model = Cropping([keras.Input((4,)), layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    wide = np.concatenate([X, X], axis=1)
    with pytest.raises(tf.errors.InvalidArgumentError):
        memfit.fit(model, tf.data.Dataset.from_tensor_slices((wide, Y)).batch(8), verbose=0, shuffle=False)


class TakingApart(keras.Sequential):
    """Takes its data apart as most examples of custom steps do, and takes no synthetic samples."""

    def train_step(self, data: Any) -> Any:
        x, y, *weight = data
        tf.debugging.assert_less(tf.reduce_max(tf.abs(y)), 1e6 if not weight else 1e-3)
        return super().train_step((x, y, *weight))


@pytest.mark.parametrize("memory", [None, "512MiB"])
def test_a_custom_train_step_gets_what_keras_gives_it(memory: str | None) -> None:
    model = TakingApart([keras.Input((4,)), layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    history = memfit.fit(model, X, Y, memory=memory, verbose=0)
    assert history.memory.plan.changes_nothing


def test_a_custom_train_step_that_fails_while_it_is_recorded_trains_as_stock_keras() -> None:
    model = TakingApart([keras.Input((4,)), layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    small, weights = 1e-4 * Y / np.abs(Y).max(), np.ones(len(Y), "float32")
    history = memfit.fit(model, X, small, sample_weight=weights, verbose=0)
    assert history.memory.plan is None
    assert "no plan could be made: The training step failed on synthetic data" in str(
        history.memory.events[0]
    )
    with pytest.raises(StepFailed, match="synthetic data: InvalidArgumentError"):
        memfit.fit(model, X, small, sample_weight=weights, memory="512MiB", verbose=0)


def test_a_batch_size_beside_data_in_batches_is_ignored_as_by_keras() -> None:
    history = memfit.fit(linear(), SOURCES["dataset"][0]()["x"], batch_size=16, verbose=0, shuffle=False)
    assert history.memory.plan.batch_size == 8


@pytest.fixture
def broken_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug of memfit's own, in the middle of planning."""

    def make_plan(*args: Any, **kwargs: Any) -> Any:
        raise KeyError("a bug")

    monkeypatch.setattr("memfit.training.plan_choice.make_plan", make_plan)


@pytest.mark.usefixtures("broken_planning")
def test_a_bug_in_planning_fails_a_test() -> None:
    with pytest.raises(KeyError, match="a bug"):
        memfit.fit(linear(), X, Y, verbose=0)


@pytest.mark.usefixtures("broken_planning")
def test_a_bug_in_planning_is_a_warning_for_users_and_the_model_trains(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    history = memfit.fit(linear(), X, Y, verbose=0)
    assert len(history.epoch) == 1
    assert history.memory.plan is None
    (event,) = history.memory.events
    assert "KeyError: 'a bug'" in str(event)
    assert "bug in memfit, please report it" in str(event)
    (record,) = [record for record in caplog.records if record.name == "memfit"]
    assert (record.levelname, record.getMessage()) == ("WARNING", str(event))
    assert record.exc_info is not None
    assert record.exc_info[0] is KeyError
    with pytest.raises(KeyError, match="a bug"):  # a memory that was asked for is a promise
        memfit.fit(linear(), X, Y, verbose=0, memory="1GiB")


def test_what_the_user_can_mend_is_said_whether_a_memory_was_asked_for_or_not() -> None:
    assert "whole number" in refused(linear(), batch_size=0)
    assert "whole number" in refused(linear(), batch_size=0, memory="1GiB")


def test_a_custom_train_step_is_still_validated_in_parts() -> None:
    model = OwnStep([keras.Input((4,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    history = memfit.fit(model, X, Y, verbose=0, validation_data=(X, Y), plan=levers(model, 32, None, 8))
    assert history.history["val_loss"][0] == pytest.approx(model.evaluate(X, Y, verbose=0), rel=1e-5)


def test_the_record_of_a_monitor_among_the_callbacks_is_part_of_the_run() -> None:
    monitor = memfit.MemoryMonitor()
    history = memfit.fit(linear(), X, Y, epochs=2, verbose=0, callbacks=[monitor])
    assert history.memory.monitored == monitor.record
    assert len(history.memory.to_json()["monitored"]["phases"]) == 2
    assert memfit.fit(linear(), X, Y, verbose=0).memory.monitored is None


def _without_counts() -> Any:
    return memfit.fit(linear(), X, Y, verbose=0, callbacks=[memfit.MemoryMonitor()]).memory.measured


def test_a_device_whose_allocator_does_not_count_trains_too() -> None:
    # Without oneDNN the allocator of TensorFlow's CPU device keeps no counts.
    assert run_forked(_without_counts, TF_ENABLE_ONEDNN_OPTS="0") is None
