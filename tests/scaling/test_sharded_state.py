"""An optimizer's state dealt out to ranks: the bits of a state that all ranks keep, and less of it on each."""

import logging
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import memfit
from memfit.compat.keras_optimizers import optimizer_slots
from memfit.planning.planning import exchange_bytes
from memfit.steps.sharded_state import ShardedState, deal_out, sharded_state
from scaling.several_ranks import run_alone, run_ranks
from training.parity import levers

_OPTIMIZERS = {
    "Adam, clipped, scaled": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.9), global_clipnorm=0.1)
    ),
    "SGD with momentum, decayed": lambda: keras.optimizers.SGD(0.1, 0.9, weight_decay=0.01),
}


def _make(name: str) -> tuple[keras.Model, Any, Any]:
    keras.config.set_floatx("float64")
    keras.utils.set_random_seed(5)
    layers = [keras.layers.Dense(width, activation="tanh") for width in (16, 24, 8)]
    model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dropout(0.2), keras.layers.Dense(1)])
    model.compile(_OPTIMIZERS[name](), "mse", metrics=["mae"])
    random = np.random.default_rng(1)
    return model, random.normal(size=(50, 6)), random.normal(size=(50, 1))


class _Kept(keras.callbacks.Callback):
    """Notes how many values of its slots the optimizer has, and what a checkpoint at the end of an epoch holds."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        optimizer = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)
        slots = [slot for slots in optimizer_slots(optimizer) for slot in slots if slot is not None]
        self.values = sum(int(tf.size(slot.value.read_value())) for slot in slots)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        store: dict[str, Any] = {}
        self.model.optimizer.save_own_variables(store)
        self.saved = {name: np.array(value) for name, value in store.items()}


def _train(name: str, ranks: int) -> dict[str, Any]:
    model, x, y = _make(name)
    kept = _Kept() if not ranks or memfit.scaling.communicator.join_cluster().rank == 0 else None
    arguments: dict[str, Any] = {
        "batch_size": 12,
        "epochs": 2,
        "verbose": 0,
        "callbacks": [kept] if kept else [],
    }
    for _ in range(2):  # the second one goes on with the state of the first
        if ranks > 1:
            change = ShardedState(ranks)
            history = memfit.fit(model, x, y, **arguments, plan=levers(model, 12 // ranks, changes=(change,)))
        elif ranks:
            history = memfit.fit(model, x, y, **arguments)
        else:
            history = model.fit(x, y, **arguments)
    assert sharded_state(model) is None
    states = [variable.numpy() for variable in (*model.variables, *_optimizer_variables(model))]
    noted = None if kept is None else (kept.values, kept.saved)
    return {"states": states, "loss": history.history["loss"], "kept": noted}


def _optimizer_variables(model: keras.Model) -> list[Any]:
    inner = getattr(model.optimizer, "inner_optimizer", None)
    return [*model.optimizer.variables, *([] if inner is None else inner.variables)]


@pytest.mark.parametrize("name", _OPTIMIZERS)
def test_ranks_that_keep_a_part_each_train_as_one_device(name: str) -> None:
    stock = run_alone(_train, name, 0)
    whole, parts = run_ranks(_train, name, 1), run_ranks(_train, name, 2)
    for one, other, kept, expected in zip(
        parts[0]["states"], parts[1]["states"], whole[0]["states"], stock["states"], strict=True
    ):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(one, kept)  # bit by bit what ranks give that keep all of it
        np.testing.assert_allclose(one, expected, rtol=1e-10, atol=1e-12)
    values, saved = parts[0]["kept"]
    all_values, all_saved = stock["kept"]
    assert values < 0.7 * all_values
    assert saved.keys() == all_saved.keys()
    for number in saved:
        np.testing.assert_allclose(saved[number], all_saved[number], rtol=1e-10, atol=1e-12)


def test_variables_are_dealt_out_by_size() -> None:
    variables = [np.zeros(size) for size in (2, 9, 4, 5, 1)]
    assert deal_out(variables, 2) == [0, 0, 1, 1, 1]
    assert deal_out(variables, 1) == [0] * 5


def test_a_plan_for_ranks_says_what_it_saves_and_takes_it_if_asked() -> None:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((256,)), *(keras.layers.Dense(256) for _ in range(8))])
    model.compile("adam", "mse")
    state = 2 * 4 * sum(int(np.prod(weight.shape)) for weight in model.trainable_variables)
    assert memfit.plan(model, 64, "1GiB", ranks=4, shard_optimizer=True).changes_nothing
    # Half of the state less than 16 samples on each of 4 ranks take as they are.
    memory = int(memfit.estimate(model, 16).needed + exchange_bytes(model)) - state // 2
    with pytest.raises(
        memfit.DoesNotFit, match=r"on each of 4 ranks .* With --shard-optimizer each rank"
    ) as refusal:
        memfit.plan(model, 64, memory, "exact", ranks=4)
    assert memfit.plan(model, 64, refusal.value.smallest_memory, "exact", ranks=4).ranks == 4
    tight = memfit.plan(model, 64, memory, "exact", ranks=4, shard_optimizer=True)
    row = next(row for row in tight.levers if row.name == "sharded optimizer")
    assert row.used
    (change,) = tight.recipe.changes
    assert change.saves == pytest.approx(0.75 * state, rel=0.1)
    # Against stock's step, which does not hold all gradients at once as the guarded one does.
    assert 0 < row.saving <= tight.stock - tight.predicted
    assert "1/4 each" in repr(tight)
    assert type(tight).from_json(tight.to_json()) == tight
    with pytest.raises(memfit.InvalidInput, match="This plan is for 4 ranks"):
        memfit.fit(model, np.zeros((64, 256)), np.zeros((64, 256)), batch_size=16, plan=tight, verbose=0)


def _fail() -> tuple[list[str], list[Any]]:
    """Trains until an error; returns what was logged, and the shapes of the optimizer's variables."""
    model, x, y = _make("SGD with momentum, decayed")
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("memfit").addHandler(handler)

    def stop(batch: int, logs: Any) -> None:
        raise KeyboardInterrupt

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
    plan = levers(model, 6, changes=(ShardedState(2),))
    with pytest.raises(KeyboardInterrupt):
        memfit.fit(model, x, y, batch_size=12, verbose=0, callbacks=[callback], plan=plan)
    assert sharded_state(model) is None
    return lines, [tuple(variable.numpy().shape) for variable in model.optimizer.variables]


def test_a_training_that_fails_says_what_of_the_state_is_lost() -> None:
    for lines, shapes in run_ranks(_fail):
        assert any("the parts of other ranks are lost and begin at zero" in line for line in lines)
        assert (16, 24) in shapes
        assert (0,) not in shapes
