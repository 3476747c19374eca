"""A training that is stopped at any batch and goes on in another process ends as if nothing had happened.

Here the processes are only as good as new: everything is built again, and a new runner reads the checkpoints.
`test_supervising.py` has real ones.
"""

import csv
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import memfit
from memfit.budgets.budget import budget
from memfit.planning.fidelity import Fidelity
from memfit.steps.recipe import Recipe
from memfit.survival import supervised_runner
from memfit.survival.kept_states import take_over_newest
from memfit.survival.settings import ProcessSettings
from memfit.survival.snapshots import copy_values
from memfit.survival.supervised_runner import NothingTighter, SupervisedRunner
from memfit.survival.supervision import Stopped, Supervision
from memfit.training.running import current_runner, install_runner

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(50, 6)).astype("float32"), RANDOM.normal(size=(50, 1)).astype("float32")


@pytest.fixture(autouse=True)
def no_runner_afterwards() -> Iterator[None]:
    yield
    install_runner(None)
    tf.random.set_seed(None)


def new_process(directory: Path, *, tighten: bool = False) -> SupervisedRunner:
    settings = ProcessSettings(seed=99, directory=str(directory), checkpoint_seconds=1000.0, tighten=tighten)
    runner = SupervisedRunner(Supervision(settings))
    install_runner(runner)
    return runner


class Witness(keras.callbacks.Callback):
    """Sees every event, and asks for the end after some batch."""

    def __init__(self, end_after: int | None = None) -> None:
        super().__init__()
        self.seen: list[Any] = []
        runner = current_runner()
        self.end_after = lambda: end_after  # a function is no state
        self.stop = lambda: runner.supervision.ask_to_stop()  # type: ignore[attr-defined]

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.seen.append(("epoch", epoch))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append((batch, logs["loss"]))
        if self.end_after() == sum(isinstance(place, int) for place, _ in self.seen):
            assert self.stop()

    def on_test_end(self, logs: Any = None) -> None:
        self.seen.append(("test", logs["loss"]))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seen.append((f"end {epoch}", dict(logs)))


def network() -> keras.Model:
    layers = keras.layers
    normal = [layers.Dense(8), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(1)]
    model = keras.Sequential([keras.Input((6,)), *normal])
    rate = keras.optimizers.schedules.ExponentialDecay(0.05, 5, 0.9)
    model.compile(keras.optimizers.Adam(rate, use_ema=True), "mse", metrics=["mae"])
    return model


class Unbuilt(keras.Model):
    """A subclassed model, which has no weights before its first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(4)
        self.noise = keras.layers.GaussianDropout(0.2)
        self.last = keras.layers.Dense(1)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.last(self.noise(self.dense(x), training=training))


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return X[index * 8 : index * 8 + 8], Y[index * 8 : index * 8 + 8]


def shuffled() -> Any:
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(50, seed=3)


DATA: dict[str, Any] = {
    "arrays": lambda: {"x": X, "y": Y, "batch_size": 8, "validation_split": 0.2},
    "dataset": lambda: {"x": shuffled().batch(8), "validation_data": shuffled().batch(8).take(3)},
    "dataset of unknown length": lambda: {
        "x": shuffled().filter(lambda x, y: x[0] > -1).batch(8),
        "validation_data": shuffled().filter(lambda x, y: x[0] > 0).batch(8),
    },
    "endless dataset": lambda: {"x": shuffled().repeat().batch(8), "steps_per_epoch": 5},
    "two epochs a pass": lambda: {"x": shuffled().batch(8).take(6), "steps_per_epoch": 3},
    "PyDataset": lambda: {"x": Batches(), "shuffle": True},
    "memfit's arrays": lambda: {"x": memfit.arrays(X, Y, batch_size=8, shuffle=True, seed=3)},
}


def run(
    directory: Path, data: dict[str, Any], end_after: int | None, make: Any = network, epochs: int = 3
) -> Any:
    """One process: builds all anew, and trains to the end or to where it is asked to end."""
    new_process(directory)
    model = make()
    witness = Witness(end_after)
    stopping = keras.callbacks.EarlyStopping("loss", patience=1, restore_best_weights=True)
    plateau = keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=10.0)
    callbacks = [witness, stopping] if make is network else [witness, stopping, plateau]
    quiet = {"verbose": 0, "epochs": epochs, "callbacks": callbacks}
    shuffle = {} if "y" in data or "shuffle" in data else {"shuffle": False}
    history = memfit.fit(model, **{**data, **shuffle, **quiet})
    return copy_values(model), history.history, history.epoch, witness.seen, stopping.wait, stopping.best


def interrupted(directory: Path, data: Any, ends: list[int], make: Any = network) -> Any:
    directory.mkdir()
    for end_after in [*ends, None]:
        keras.utils.set_random_seed(5)
        try:
            return run(directory, data(), end_after, make)
        except Stopped:
            continue
    raise AssertionError("the last process ends by itself")


def assert_same(found: Any, undisturbed: Any) -> None:
    for a, b in zip(found[0], undisturbed[0], strict=True):
        np.testing.assert_array_equal(a, b)
    assert found[1:] == undisturbed[1:]


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("kind", DATA)
def test_the_end_is_the_same_to_the_last_bit_wherever_it_was_stopped(tmp_path: Path, kind: str) -> None:
    undisturbed = interrupted(tmp_path / "undisturbed", DATA[kind], [])
    assert len(undisturbed[3]) >= 15
    # At the first batch, in the middle of an epoch, after its last batch (5, 6 or 7) and in the next one.
    for number, ends in enumerate([[1, 5], [6, 9]] if kind == "arrays" else [[5, 7]]):
        assert_same(interrupted(tmp_path / str(number), DATA[kind], ends), undisturbed)


class LostAtTheEnd(keras.callbacks.Callback):
    """When the data of the second epoch has ended, the state is kept, and the process is gone."""

    def __init__(self, runner: SupervisedRunner | None) -> None:
        super().__init__()

        def lose() -> None:
            if runner is not None:
                runner.supervision.keep_state()
                raise Stopped

        self._lose = lose  # a function is no state
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        if (self._epoch, batch) == (1, 1):
            self._lose()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            self._lose()


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("with_validation", [True, False])
def test_data_of_unknown_length_ends_once_where_a_state_is_kept_behind_its_end(
    tmp_path: Path, with_validation: bool
) -> None:
    def train(directory: Path, *, lost: bool = False) -> Any:
        directory.mkdir(exist_ok=True)
        keras.utils.set_random_seed(5)
        take_over_newest(directory)
        runner, model = new_process(directory), network()
        callbacks = [LostAtTheEnd(runner if lost else None)]
        data = DATA["dataset of unknown length"]()
        if not with_validation:
            del data["validation_data"]
        history = memfit.fit(model, **data, epochs=3, verbose=0, shuffle=False, callbacks=callbacks)
        return copy_values(model), history.history

    undisturbed = train(tmp_path / "undisturbed")
    with pytest.raises(Stopped):
        train(tmp_path / "lost", lost=True)
    found = train(tmp_path / "lost")
    assert found[1] == undisturbed[1]
    for a, b in zip(found[0], undisturbed[0], strict=True):
        np.testing.assert_array_equal(a, b)


def test_arrays_without_a_seed_get_an_order_that_comes_again(tmp_path: Path) -> None:
    def data() -> dict[str, Any]:
        tf.random.set_seed(None)
        return DATA["arrays"]()

    undisturbed = interrupted(tmp_path / "undisturbed", data, [])
    assert_same(interrupted(tmp_path / "stopped", data, [7]), undisturbed)


def test_a_model_without_weights_before_its_first_batch_goes_on_too(tmp_path: Path) -> None:
    def make() -> keras.Model:
        model = Unbuilt()
        model.compile("adam", "mse", steps_per_execution=2)
        return model

    undisturbed = interrupted(tmp_path / "undisturbed", DATA["dataset"], [], make)
    # The second stop is behind the first epoch's end, when the callbacks know whether less is better.
    assert_same(interrupted(tmp_path / "stopped", DATA["dataset"], [2, 6], make), undisturbed)


class Adversaries(keras.Model):
    """A GAN as most are written: no `call`, and two optimizers that only its step knows."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.Sequential([keras.Input((3,)), keras.layers.Dense(6)])
        self.judge = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        self.seeds = keras.random.SeedGenerator(1)
        self.tracker = keras.metrics.Mean(name="loss")

    def compile(self, *optimizers: Any) -> None:
        super().compile()
        self.both = list(optimizers)

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]

    def train_step(self, data: Any) -> Any:
        real = data[0]
        noise = keras.random.normal((tf.shape(real)[0], 3), seed=self.seeds)
        for optimizer, part, wanted in zip(self.both, (self.generator, self.judge), (1.0, 0.0), strict=True):
            with tf.GradientTape() as tape:
                fooled = tf.reduce_mean(tf.square(self.judge(self.generator(noise)) - wanted))
                loss = fooled + (1 - wanted) * tf.reduce_mean(tf.square(self.judge(real) - 1))
            optimizer.apply(tape.gradient(loss, part.trainable_weights), part.trainable_weights)
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


def test_a_gan_without_call_goes_on_with_the_states_of_its_own_optimizers(tmp_path: Path) -> None:
    def make() -> keras.Model:
        model = Adversaries()
        model.compile(keras.optimizers.Adam(0.01), keras.optimizers.RMSprop(0.01))
        return model

    def data() -> dict[str, Any]:
        return {"x": shuffled().batch(8)}

    undisturbed = interrupted(tmp_path / "undisturbed", data, [], make)
    assert_same(interrupted(tmp_path / "stopped", data, [2, 9], make), undisturbed)


class TakesRagged(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(x.to_tensor(shape=(None, 6)))


def takes_sparse() -> keras.Model:
    return keras.Sequential([keras.Input((6,), sparse=True), keras.layers.Dense(1)])


@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_arrays_without_a_length_train_as_in_stock_keras(tmp_path: Path, kind: str) -> None:
    histories = []
    for supervised in (False, True):
        keras.utils.set_random_seed(5)
        model = TakesRagged() if kind == "ragged" else takes_sparse()
        model.compile("sgd", "mse", jit_compile=False)
        x = tf.RaggedTensor.from_tensor(X) if kind == "ragged" else tf.sparse.from_dense(X)
        if supervised:
            new_process(tmp_path)
            histories.append(memfit.fit(model, x, Y, batch_size=8, verbose=0).history)
        else:
            histories.append(model.fit(x, Y, batch_size=8, verbose=0).history)
    assert histories[0] == histories[1]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a file of the stopped logger
def test_a_second_fit_goes_on_where_it_was_and_the_first_is_passed_over(tmp_path: Path) -> None:
    def script(directory: Path, end_after: int | None) -> Any:
        keras.utils.set_random_seed(5)
        new_process(directory)
        model, lines = network(), []
        data = shuffled().batch(8)
        with_log = {"shuffle": False, "verbose": 0}
        for stage in range(3):
            witness = Witness(end_after if stage == 1 else None)
            logger = keras.callbacks.CSVLogger(directory / f"{stage}.csv")
            callbacks = [witness, logger, keras.callbacks.EarlyStopping("loss", patience=0)]
            history = memfit.fit(model, data, epochs=2 + stage, callbacks=callbacks, **with_log)
            values = [value.tolist() for value in copy_values(model)]
            with (directory / f"{stage}.csv").open() as file:
                lines.append([history.history, witness.seen, values, [*csv.reader(file)]])
        return lines

    directories = [tmp_path / name for name in ("undisturbed", "stopped")]
    for directory in directories:
        directory.mkdir()
    undisturbed = script(directories[0], None)
    for end_after in (3, 9):
        with pytest.raises(Stopped):
            script(directories[1], end_after)
    found = script(directories[1], None)
    assert found[1:] == undisturbed[1:]
    # The first fit was not trained again: its callbacks are as they were, and so are its results.
    assert found[0] == undisturbed[0]


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # TensorFlow 2.19
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_data_that_cannot_be_repeated_goes_on_at_the_epoch_and_this_is_said_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def data() -> dict[str, Any]:
        def rows() -> Iterator[Any]:
            yield from zip(X, Y, strict=True)

        spec = (tf.TensorSpec((6,)), tf.TensorSpec((1,)))
        return {
            "x": tf.data.Dataset.from_generator(rows, output_signature=spec).batch(10, drop_remainder=True)
        }

    tmp_path.joinpath("run").mkdir()
    caplog.set_level(logging.WARNING)
    found = run(tmp_path / "run", data(), None)
    assert "beginning of an epoch, not at its batch: it runs Python code" in caplog.text
    assert found[2] == [0, 1, 2]


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    def other() -> keras.Model:
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        return model

    with pytest.raises(Stopped):
        run(tmp_path, DATA["arrays"](), 3)
    with pytest.raises(memfit.InvalidInput, match="a different one"):
        run(tmp_path, DATA["arrays"](), None, other)


def test_state_that_cannot_be_saved_is_named_before_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Holder(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.stream = (line for line in "abc")
            self.told = lambda: None

    new_process(tmp_path)
    with caplog.at_level(logging.WARNING):
        memfit.fit(network(), X, Y, verbose=0, callbacks=[Holder()])
    assert "cannot be pickled: Holder.stream." in caplog.text


def test_after_a_crash_for_want_of_memory_another_plan_is_followed_or_none(tmp_path: Path) -> None:
    model = network()
    new_process(tmp_path)
    plan = memfit.fit(model, X, Y, verbose=0).memory.plan
    tighter = replace(plan, recipe=Recipe(micro_batch=8), predicted=memfit.Size(plan.predicted // 2))
    asked: list[Any] = []
    answers: list[Any] = []

    def make(memory: Any) -> Any:
        asked.append(memory)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def planned(*given: Any, tighten: bool = True) -> Any:
        answers[:], asked[:] = given, []
        runner = new_process(tmp_path, tighten=tighten)
        runner.begin(model, {})
        return runner.plan(model, "8GiB", make).to_json()

    def refusal(closest: Any = None) -> memfit.DoesNotFit:
        return memfit.DoesNotFit("nothing is that small", memfit.Size(1), 0, None, closest)

    assert planned() == plan.to_json()  # that fit() had ended: there is nothing to tighten
    (tmp_path / "fit-000.npz").unlink()
    assert planned(tighter) == tighter.to_json()
    assert asked == [int(0.8 * min(plan.memory, plan.predicted))]
    assert planned(plan, tighter) == tighter.to_json()  # never the same recipe again
    assert asked[1] < asked[0]
    assert planned(refusal(tighter)) == tighter.to_json()
    for nothing in (refusal(), refusal(plan), memfit.InvalidInput("The weights alone take 2 GiB")):
        with pytest.raises(NothingTighter, match="no plan that is allowed takes less"):
            planned(nothing)
    farther = memfit.DoesNotFit("nothing is that small", memfit.Size(1), 0, Fidelity.PRECISION)
    with pytest.raises(NothingTighter, match=r'takes less\. With allow="precision" one would\.'):
        planned(farther)
    assert planned(tighten=False) == plan.to_json()  # the plan of the process before
    (tmp_path / "plan-000.json").write_text("{")
    assert planned(plan, tighten=False) == plan.to_json()
    assert asked == ["8GiB"]  # made anew, as that file holds none


def test_a_plan_for_more_memory_than_there_is_is_made_anew_for_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network()
    new_process(tmp_path)
    plan = memfit.fit(model, X, Y, verbose=0).memory.plan
    (tmp_path / "fit-000.npz").unlink()
    there = replace(budget().device, total=memfit.Size(plan.predicted - 1))
    monkeypatch.setattr(supervised_runner, "budget", lambda: replace(budget(), devices=(there,)))
    runner, asked = new_process(tmp_path, tighten=True), list[Any]()
    runner.begin(model, {})

    def make(memory: Any) -> Any:
        asked.append(memory)
        return replace(plan, recipe=Recipe(micro_batch=8))

    runner.plan(model, "8GiB", make)
    assert asked == [plan.predicted - 1]


def test_arrays_that_a_restarted_script_makes_anew_are_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Stopped):
        run(tmp_path, DATA["arrays"](), 3)
    with caplog.at_level(logging.WARNING):
        run(tmp_path, {**DATA["arrays"](), "x": X + 1}, None)
    assert "differ from those of the checkpoint" in caplog.text
