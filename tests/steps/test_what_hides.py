"""What depends on the other samples of a batch is found wherever it hides, and no such training is called exact."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

import memfit
from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.levers.micro_batches import MicroBatches
from memfit.steps.micro_batches.varying import choose_rows
from training.parity import levers

SAMPLES = 256
MEMORY = "4MiB"  # less than a whole batch of 1024 takes
X = np.random.default_rng(0).normal(size=(SAMPLES, 64)).astype("float32")
Y = X[:, :1]


class TrainingLoss(layers.Layer):
    """Adds a loss in training only, such as one that balances a load."""

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.add_loss(ops.sum(ops.square(ops.mean(x, 0))))
        return x


class Router(layers.Layer):
    """A Switch router, which begins with equal chances: its loss multiplies two means over the batch."""

    def build(self, shape: Any) -> None:
        self.gate = self.add_weight(shape=(shape[-1], 4), initializer="zeros")
        self.experts = self.add_weight(shape=(4, shape[-1], shape[-1]))

    def call(self, x: Any) -> Any:
        chances = ops.softmax(ops.matmul(x, self.gate))
        chosen = ops.one_hot(ops.argmax(chances, -1), 4, dtype=chances.dtype)
        self.add_loss(4 * ops.sum(ops.mean(chances, 0) * ops.mean(chosen, 0)))
        return x + ops.einsum("bd,nde,bn->be", x, self.experts, chances * chosen)


class Gated(layers.Layer):
    """A branch over the batch behind a gate that is closed at first."""

    def build(self, shape: Any) -> None:
        self.gate = self.add_weight(shape=(), initializer="zeros")

    def call(self, x: Any) -> Any:
        return x + self.gate * ops.mean(x, 0, keepdims=True)


def balanced(y: Any, predicted: Any) -> Any:
    """Weighs classes by how frequent they are in the batch."""
    negative = ops.mean(1 - y)
    loss = keras.losses.binary_crossentropy(y, predicted, from_logits=True)
    return ops.where(y[:, 0] > 0, negative, 1 - negative) * loss


def cox(y: Any, predicted: Any) -> Any:
    """Compares those with an event to all of the batch that were still at risk."""
    time, event = y[:, 0], y[:, 1]
    risk = ops.cast(time[None, :] >= time[:, None], predicted.dtype)
    return -event * (predicted[:, 0] - ops.log(ops.sum(risk * ops.exp(predicted[:, 0])[None], 1)))


def triplet(y: Any, embedded: Any) -> Any:
    """Takes the farthest sample of the same class and the nearest of another."""
    y = ops.reshape(y, (-1,))
    embedded = ops.normalize(embedded, axis=-1)
    distance = 1 - ops.matmul(embedded, ops.transpose(embedded))
    same = ops.cast(y[:, None] == y[None], embedded.dtype)
    farthest, nearest = ops.max(distance * same, 1), ops.min(distance + 10 * same, 1)
    return ops.relu(farthest - nearest + 0.5) * ops.cast(nearest < 9, embedded.dtype)


def first_ones_negative() -> Any:
    y = np.zeros((SAMPLES, 1), "float32")
    y[20::64] = 1
    return y


def first_ones_censored() -> Any:
    event = np.arange(SAMPLES) % 50 == 49
    return np.stack([np.random.default_rng(1).random(SAMPLES), event], 1).astype("float32")


def sorted_by_class() -> Any:
    return (np.arange(SAMPLES) // (SAMPLES // 8)).astype("int32")[:, None]


HIDDEN: dict[str, tuple[Any, Any, Callable[[], Any], int]] = {
    "a loss added in training only": (TrainingLoss, "mse", lambda: Y, 1),
    "a router that begins with zeros": (Router, "mse", lambda: Y, 1),
    "a branch behind a gate that is zero": (Gated, "mse", lambda: Y, 1),
    "class weights, first labels alike": (None, balanced, first_ones_negative, 1),
    "risk sets, first samples censored": (None, cox, first_ones_censored, 1),
    "triplets, labels sorted": (None, triplet, sorted_by_class, 8),
    "Dice, a loss of Keras": (None, "dice", lambda: (Y > 0).astype("float32"), 1),
}


def network(layer: Any, loss: Any, outputs: int) -> keras.Model:
    keras.utils.set_random_seed(3)
    inputs = keras.Input((64,))
    x = inputs
    for _ in range(5):
        x = layers.Dense(64, activation="tanh")(layers.Activation("tanh")(x))
    x = x if layer is None else layer()(x)
    model = keras.Model(inputs, layers.Dense(outputs)(x))
    model.compile(keras.optimizers.SGD(0.05), loss)
    return model


def state(model: keras.Model) -> list[Any]:
    return [variable.numpy().copy() for variable in model.variables]


@pytest.mark.parametrize("name", HIDDEN)
def test_it_is_found_and_said_and_nothing_is_changed(name: str) -> None:
    layer, loss, labels, outputs = HIDDEN[name]
    model = network(layer, loss, outputs)
    before = state(model)
    job = Job(model, 128, memfit.Size("1GiB"), Fidelity.EXACT, (X, labels()))
    assert MicroBatches().fidelity(job) == Fidelity.NEAR
    assert "in parts" in MicroBatches().explain(job) or "batched with" in MicroBatches().explain(job)
    assert not model.optimizer.built
    for one, two in zip(before, state(model), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("name", HIDDEN)
def test_micro_batches_train_it_otherwise_than_stock_keras(name: str) -> None:
    layer, loss, labels, outputs = HIDDEN[name]
    stock, parts = network(layer, loss, outputs), network(layer, loss, outputs)
    how: dict[str, Any] = {"batch_size": 128, "epochs": 4, "shuffle": True, "verbose": 0}
    keras.utils.set_random_seed(5)
    stock.fit(X, labels(), **how)
    keras.utils.set_random_seed(5)
    plan = replace(levers(parts, 128, 32), fidelity=Fidelity.NEAR)
    memfit.fit(parts, X, labels(), **how, plan=plan)
    pairs = zip(state(stock), state(parts), strict=True)
    assert max(np.abs(one - two).max() for one, two in pairs) > 1e-4


@pytest.mark.parametrize("name", HIDDEN)
def test_a_plan_for_it_is_exact_without_micro_batches_or_near_and_says_why(name: str) -> None:
    layer, loss, labels, outputs = HIDDEN[name]
    model = network(layer, loss, outputs)
    data = tuple(np.tile(part, (4, 1)) for part in (X, labels()))
    near = memfit.plan(model, 1024, MEMORY, "near", data=data)
    row = next(lever for lever in near.levers if lever.name == "micro-batches")
    assert row.fidelity == Fidelity.NEAR
    assert near.recipe.micro_batch is None or "in parts" in row.why or "batched with" in row.why
    try:
        exact = memfit.plan(model, 1024, MEMORY, "exact", data=data)
    except memfit.DoesNotFit:
        return
    assert exact.recipe.micro_batch is None
    row = next(lever for lever in exact.levers if lever.name == "micro-batches")
    assert "in parts" in row.why or "batched with" in row.why


class ScaledBySample(layers.Layer):
    """Behind a closed gate, too, but each sample by itself."""

    def build(self, shape: Any) -> None:
        self.gate = self.add_weight(shape=(shape[-1],), initializer="zeros")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.add_loss(1e-2 * ops.mean(ops.square(x)))
        return x + self.gate * ops.tanh(x)


def hinge(y: Any, predicted: Any) -> Any:
    return ops.maximum(0.0, 1.0 - (2 * y - 1) * predicted)[:, 0]


@pytest.mark.parametrize(
    ("layer", "loss", "labels"),
    [
        (ScaledBySample, "mse", lambda: Y),
        (None, hinge, first_ones_negative),
        (layers.UnitNormalization, hinge, lambda: Y),
    ],
    ids=["a gate", "rare labels", "unit norms"],
)
def test_what_looks_at_each_sample_alone_stays_exact_and_trains_as_stock_keras(
    layer: Any, loss: Any, labels: Callable[[], Any]
) -> None:
    stock, parts = network(layer, loss, 1), network(layer, loss, 1)
    job = Job(parts, 128, memfit.Size("1GiB"), Fidelity.EXACT, (X, labels()))
    assert MicroBatches().fidelity(job) == Fidelity.EXACT, MicroBatches().explain(job)
    how: dict[str, Any] = {"batch_size": 128, "epochs": 2, "shuffle": False, "verbose": 0}
    stock.fit(X, labels(), **how)
    assert memfit.fit(parts, X, labels(), **how, plan=levers(parts, 128, 32)).memory.events == ()
    for one, two in zip(state(stock), state(parts), strict=True):
        np.testing.assert_allclose(one, two, rtol=2e-4, atol=2e-5)


def test_samples_are_chosen_from_all_over_the_data_and_with_every_value_that_a_label_has() -> None:
    labels = np.zeros((1000, 2))
    labels[[17, 503], 0] = 1
    labels[:, 1] = np.arange(1000) // 100
    rows = choose_rows([labels], 1000, 8)
    assert len(set(rows)) == 8
    assert set(labels[rows, 0]) == {0, 1}
    assert len(set(labels[rows, 1])) > 4
