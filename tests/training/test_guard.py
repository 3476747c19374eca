"""Memory runs out in every phase of a training, and the training ends as if nothing had happened."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import cloudpickle
import numpy as np
import pytest

from prepared import in_arena
from training import hunger, parity

cloudpickle.register_pickle_by_value(hunger)
cloudpickle.register_pickle_by_value(parity)

SAMPLES, BATCH = 24, 4


def network(optimizer: Any, **compiling: Any) -> Any:
    """A small network with everything that a step changes: statistics, dropout's seed, metrics."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, activation="tanh"),
            layers.BatchNormalization(),
            hunger.Hungry(),
            layers.Dropout(0.3),
            layers.Dense(1),
        ]
    )
    model.compile(optimizer, "mse", **{"metrics": ["mae", hunger.HungryMean(name="mean")], **compiling})
    return model


def data() -> tuple[Any, Any]:
    random = np.random.default_rng(1)
    x = random.normal(size=(SAMPLES, 6)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def state(model: Any) -> list[Any]:
    values = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return [variable.numpy() for variable in values]


def train(courses: dict[int, str], make: Any, **arguments: Any) -> tuple[list[Any], Any, list[str]]:
    """Trains two epochs with shortages; returns the state at the end, the history and what was said."""
    import memfit

    model = make()
    x, y = data()
    with hunger.sated_by_a_warning() as said:
        history = memfit.fit(
            model,
            **{"x": x, "y": y, "batch_size": BATCH, "epochs": 2, "verbose": 0, "shuffle": False, **arguments},
            callbacks=[hunger.Menu(courses)],
        )
    return state(model), history, said


def every_phase() -> dict[str, Any]:
    import keras

    def make() -> Any:
        schedule = keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.8)
        return network(hunger.HungryAdam(schedule, use_ema=True, weight_decay=0.01))

    courses = {2: "forward", 4: "backward", 7: "metric", 9: "update", -2: "inference"}
    validation = {"validation_data": data(), "validation_batch_size": 8}
    calm, calm_history, nothing = train({}, make, **validation)
    state, history, said = train(courses, make, **validation)
    return {
        "same": [np.array_equal(a, b) for a, b in zip(calm, state, strict=True)],
        "history": (calm_history.history, history.history),
        "said": said,
        "nothing": nothing,
        "events": [event.to_json() for event in history.memory.events],
    }


def taken_away() -> dict[str, Any]:
    """All but 70 MiB are taken away for a while; no sample sees another."""
    import keras
    from keras import layers

    import memfit
    from memfit.training.guard import replaying

    replaying._QUIET = 20  # batches until the whole ones are tried again, in a process of its own

    def make() -> Any:
        keras.utils.set_random_seed(3)
        wide = [layers.Activation("tanh") for _ in range(4)]
        model = keras.Sequential([keras.Input((16,)), layers.Dense(4096), *wide, layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse", metrics=["mae"])
        return model

    x = np.random.default_rng(1).normal(size=(2048, 16)).astype("float32")
    how = {"x": x, "y": x[:, :1], "batch_size": 1024, "epochs": 15, "verbose": 0, "shuffle": False}
    stock = make()
    stock_history = stock.fit(**how)
    model = make()
    history = memfit.fit(model, **how, callbacks=[hunger.Ballast(70 * 2**20, 3, 20)])
    return {
        "weights": (stock.get_weights(), model.get_weights()),
        "history": (stock_history.history, history.history),
        "updates": int(model.optimizer.iterations),
        "events": [event.to_json() for event in history.memory.events],
    }


def statistics() -> dict[str, Any]:
    """Memory is taken away for good from a model with BatchNormalization, under a plan that is exact."""
    import keras
    from keras import layers

    import memfit

    def make() -> Any:
        keras.utils.set_random_seed(3)
        inputs = x = keras.Input((16,))
        x = layers.Dense(2048)(x)
        for _ in range(4):
            x = layers.Activation("tanh")(layers.BatchNormalization()(x))
        model = keras.Model(inputs, layers.Dense(1)(x))
        model.compile(keras.optimizers.SGD(0.01), "mse")
        return model

    x = np.random.default_rng(1).normal(size=(1024, 16)).astype("float32")
    how = {"x": x, "y": x[:, :1], "batch_size": 1024, "epochs": 6, "verbose": 0, "shuffle": False}
    stock = make()
    stock.fit(**how)
    model = make()
    ballast = hunger.Ballast(60 * 2**20, 2)
    history = memfit.fit(model, **how, callbacks=[ballast], plan=parity.levers(model, 1024))
    return {
        "weights": (stock.get_weights(), model.get_weights()),
        "events": [event.to_json() for event in history.memory.events],
    }


def own_steps() -> dict[str, Any]:
    """Steps that cannot be split: custom ones, and optimizers with branches."""
    import keras

    import memfit

    class Own(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            return super().train_step(data)

    def custom() -> Any:
        model = network(hunger.HungryAdam())
        own = Own(model.layers)
        own.compile(model.optimizer, "mse", metrics=["mae"])
        return own

    def eager() -> Any:
        return network(hunger.HungryAdam(), run_eagerly=True)

    same = {}
    for name, make in (("custom", custom), ("eager", eager)):
        calm, found = train({}, make), train({3: "backward"}, make)
        same[name] = all(np.array_equal(a, b) for a, b in zip(calm[0], found[0], strict=True))
        same[name] &= calm[1].history == found[1].history and len(found[2]) == 1
    lost = {}
    accumulating = lambda: network(hunger.HungryAdam(gradient_accumulation_steps=2))  # noqa: E731
    for name, make in (("custom", custom), ("accumulating", accumulating)):
        try:
            train({4: "update"}, make)
        except memfit.OutOfMemory as error:
            lost[name] = (error.intact, str(error))
    return {"same": same, "lost": lost}


def without_training() -> dict[str, Any]:
    """Evaluation and prediction of batches that only fit in parts, and a dataset that runs out once."""
    import keras
    import tensorflow as tf

    import memfit

    model = network(keras.optimizers.SGD())
    x, y = (np.repeat(part, 4, axis=0) for part in data())
    stock = model.evaluate(x, y, batch_size=64, verbose=0), model.predict(x, batch_size=64, verbose=0)
    hunger.appetite("inference").assign(2**20)  # 4 MiB for each of 64 samples
    events: list[Any] = []
    with hunger.warnings() as said:
        evaluated = memfit.evaluate(model, x, y, batch_size=64, verbose=0, events=events)
        predicted = memfit.predict(model, x, batch_size=64, verbose=0, events=events)
    hunger.appetite("inference").assign(0)

    def fed(courses: dict[int, str]) -> tuple[list[Any], Any, list[str]]:
        fed = tf.data.Dataset.from_tensor_slices(data()).batch(BATCH)
        fed = fed.map(lambda x, y: (hunger.eat("data", x), y))
        make = lambda: network(hunger.HungryAdam())  # noqa: E731
        return train(courses, make, x=fed, y=None, batch_size=None)

    calm, found = fed({}), fed({4: "data"})
    same = all(np.array_equal(a, b) for a, b in zip(calm[0], found[0], strict=True))
    return {
        "evaluated": (stock[0], evaluated),
        "predicted": (stock[1], predicted),
        "events": [event.to_json() for event in events],
        "said": said,
        "data": (same, found[2], calm[1].history == found[1].history),
    }


def without_room_for_the_optimizer() -> dict[str, Any]:
    """Adam's moments are twice the table: they do not fit beside it and what an update computes."""
    import keras
    from keras import layers

    import memfit

    keras.utils.set_random_seed(3)
    inputs = keras.Input((2,), dtype="int32")
    rows = layers.Embedding(2**18, 64, name="words")(inputs)  # 64 MiB
    model = keras.Model(inputs, layers.Dense(1)(layers.Flatten()(rows)))
    model.compile("adam", "mse")
    before = model.get_weights()
    x = np.arange(8, dtype="int32").reshape(4, 2)
    said = []
    try:
        with hunger.warnings() as said:
            memfit.fit(model, x, x[:, :1].astype("float32"), verbose=0, plan=parity.levers(model, 32))
    except memfit.OutOfMemory as error:
        same = all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
        return {"text": str(error), "intact": error.intact, "same": same, "said": said}
    return {"said": said}


@pytest.fixture(scope="module")
def runs() -> dict[str, Future[Any]]:
    """All at once: a shortage is mostly waiting, ten seconds each."""
    return _start(every_phase, taken_away)


@pytest.fixture(scope="module")
def other_runs() -> dict[str, Future[Any]]:
    return _start(statistics, own_steps, without_training, without_room_for_the_optimizer)


def _start(*cases: Any) -> dict[str, Future[Any]]:
    with ThreadPoolExecutor() as pool:
        return {case.__name__: pool.submit(in_arena, case, memory="256MiB") for case in cases}


def test_a_shortage_in_any_phase_leaves_no_trace(runs: dict[str, Future[Any]]) -> None:
    found = runs["every_phase"].result()
    assert all(found["same"])
    assert found["history"][0] == found["history"][1]
    assert found["nothing"] == []
    events = found["events"]
    assert [(event["phase"], event["batch"]) for event in events] == [
        ("training", 2),
        ("training", 4),
        ("validation", 2),
        ("training", 7),
        ("training", 9),
    ]
    assert found["said"] == [event["says"] for event in events]
    assert [event["asked"] for event in events[:2]] == [4 * hunger.ALL * BATCH] * 2
    assert all(0 < event["free"] < 2**28 for event in events)
    assert "forward" in events[0]["says"]
    assert "in the host's memory" in events[-1]["done"]


def test_memory_taken_away_is_answered_with_micro_batches_until_it_is_back(
    runs: dict[str, Future[Any]],
) -> None:
    found = runs["taken_away"].result()
    assert found["updates"] == 30
    for stock, ours in zip(*found["weights"], strict=True):
        np.testing.assert_allclose(ours, stock, rtol=2e-5, atol=2e-6)
    for name, values in found["history"][0].items():
        np.testing.assert_allclose(found["history"][1][name], values, rtol=2e-5, err_msg=name)
    *shortages, back = found["events"]
    assert {event["batch"] for event in shortages} == {3}
    assert all("micro-batches of" in event["done"] for event in shortages)
    assert "whole batches" in back["says"]


def test_an_exact_plan_stays_exact(other_runs: dict[str, Future[Any]]) -> None:
    found = other_runs["statistics"].result()
    for stock, ours in zip(*found["weights"], strict=True):
        np.testing.assert_allclose(ours, stock, rtol=2e-5, atol=2e-6)
    assert found["events"]
    assert all("whole batches, rematerialised" in event["done"] for event in found["events"])


def test_an_optimizer_without_room_is_named_with_what_helps_and_its_update_is_not_repeated(
    other_runs: dict[str, Future[Any]],
) -> None:
    found = other_runs["without_room_for_the_optimizer"].result()
    assert "The optimizer's " in found["text"]
    assert "Adam keeps 128 MiB beside 64 MiB of trained weights" in found["text"]
    assert "8-bit moments" in found["text"]
    assert found["intact"] == found["same"]
    assert len(found["said"]) <= 2  # once as it is, once from the host's memory


def test_steps_that_cannot_be_split_are_repeated_or_said_to_be_lost(
    other_runs: dict[str, Future[Any]],
) -> None:
    found = other_runs["own_steps"].result()
    assert found["same"] == {"custom": True, "eager": True}
    assert found["lost"].keys() == {"custom", "accumulating"}
    for intact, text in found["lost"].values():
        assert not intact
        assert "checkpoint" in text


def test_evaluation_and_prediction_go_on_in_smaller_parts(other_runs: dict[str, Future[Any]]) -> None:
    found = other_runs["without_training"].result()
    np.testing.assert_allclose(found["evaluated"][1], found["evaluated"][0], rtol=1e-5)
    np.testing.assert_allclose(found["predicted"][1], found["predicted"][0], rtol=1e-5)
    assert {event["phase"] for event in found["events"]} == {"validation", "prediction"}
    assert found["said"] == [event["says"] for event in found["events"]]


def test_data_that_can_be_opened_again_loses_no_batch(other_runs: dict[str, Future[Any]]) -> None:
    same, said, history = other_runs["without_training"].result()["data"]
    assert same
    assert history
    assert "Opened the data" in said[0]
