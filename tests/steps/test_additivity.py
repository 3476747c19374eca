"""A loss that does not add up from micro-batches is refused, or named where a near plan was allowed."""

from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import memfit
from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.steps.micro_batches import exactness
from memfit.steps.micro_batches.additivity import find_loss_difference
from memfit.steps.micro_batches.exactness import choose_samples, has_code_of_its_own
from memfit.steps.micro_batches.trial import agree
from prepared import in_arena
from training.parity import levers

X = np.random.default_rng(3).normal(size=(12, 4)).astype("float32")
Y = X[:, :1] > 0


def _after_dense(function: Any) -> Any:
    inputs = keras.Input((4, 4))
    return keras.Model(inputs, function(layers.Dense(4)(inputs)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + x,
        lambda x: 2.0 * x - x / 3.0,
        lambda x: -x * np.ones((4, 4), "float32"),
    ],
)
def test_arithmetic_between_layers_is_as_well_known_as_a_layer(function):
    assert not has_code_of_its_own(_after_dense(function))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + x[:, 0],  # whose samples would be taken for rows
        lambda x: x + np.ones((3, 4, 4), "float32"),
        lambda x: x + np.ones((2, 1, 4, 4), "float32"),
        lambda x: x - ops.mean(x, 0, keepdims=True),
        layers.Lambda(lambda x: x),
    ],
)
def test_what_may_mix_samples_between_layers_is_tried(function):
    assert has_code_of_its_own(_after_dense(function))


class Adds(layers.Layer):
    def __init__(self, reduce: Any) -> None:
        super().__init__()
        self.reduce = reduce

    def call(self, x: Any) -> Any:
        self.add_loss(self.reduce(ops.abs(x)))
        return x


class Noise(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.seed = keras.random.SeedGenerator(1)

    def call(self, x: Any) -> Any:
        return x + keras.random.normal(ops.shape(x), seed=self.seed)


def dice(y_true: Any, y_pred: Any) -> Any:
    return 1 - 2 * ops.sum(y_true * y_pred) / ops.sum(y_true + y_pred)


def one_mean(y_true: Any, y_pred: Any) -> Any:
    return ops.mean(ops.square(y_true - y_pred))


def model_with(loss: Any, *more: Any) -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), *more, layers.Dense(1, activation="sigmoid")])
    model.compile("sgd", loss)
    return model


def fit(model: keras.Model, **changes: Any) -> memfit.Run:
    plan = replace(levers(model, 12, 5), **changes)
    return memfit.fit(model, X, Y, batch_size=12, verbose=0, plan=plan).memory


@pytest.mark.parametrize("case", [(dice,), ("mse", Adds(ops.sum))], ids=["dice", "added sum"])
def test_what_is_no_mean_over_the_samples_is_refused_and_changes_nothing(case: tuple[Any, ...]) -> None:
    model = model_with(*case)
    before = [v.numpy() for v in model.variables]
    with pytest.raises(memfit.InvalidInput, match="mean over the samples"):
        fit(model)
    for a, b in zip(before, model.variables[: len(before)], strict=True):
        np.testing.assert_array_equal(a, b)


def test_samples_that_are_alike_do_not_hide_a_loss_that_is_no_mean() -> None:
    alike = np.ones((12, 4), "float32") + 1e-4 * X
    assert find_loss_difference(model_with(dice), (alike, np.ones((12, 1), "float32"))) is not None
    assert find_loss_difference(model_with(one_mean), (alike, np.ones((12, 1), "float32"))) is None


def test_a_near_plan_may_take_the_loss_of_micro_batches_and_says_so() -> None:
    (event,) = fit(model_with(dice), fidelity=Fidelity.NEAR).events
    assert "not of the batch" in event.says


@pytest.mark.parametrize("case", [(one_mean,), ("mse", Adds(ops.mean))], ids=["one number", "added mean"])
def test_a_mean_over_the_samples_is_exact(case: tuple[Any, ...]) -> None:
    assert fit(model_with(*case)).events == ()


def test_a_loss_is_compared_with_the_same_random_numbers() -> None:
    assert fit(model_with("mse", Noise())).events == ()
    with pytest.raises(memfit.InvalidInput, match="mean over the samples"):
        fit(model_with(dice, Noise()))


def contrast(y_true: Any, y_pred: Any) -> Any:
    """A loss for each sample that compares it with all others of its batch."""
    return ops.mean(ops.square(y_pred - ops.transpose(y_pred)), axis=1)


def test_a_loss_over_pairs_is_planned_without_micro_batches_where_exact_is_asked_for() -> None:
    inputs = keras.Input((128, 64))
    x = inputs
    for _ in range(6):
        x = layers.Activation("tanh")(layers.Dense(64, activation="softplus")(x))
    model = keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling1D()(x)))
    model.compile("sgd", contrast)
    rng = np.random.default_rng(0)
    data = rng.normal(size=(128, 128, 64)).astype("float32"), rng.normal(size=(128, 1)).astype("float32")
    plan = memfit.plan(model, 128, "45MiB", "exact", data=data)
    assert plan.recipe.micro_batch is None
    assert plan.recipe.segments is not None
    near = next(lever for lever in plan.levers if lever.name == "micro-batches")
    assert "in parts" in near.why


def test_an_added_sum_over_the_samples_cannot_be_cut_and_says_what_would_do() -> None:
    model = model_with("binary_crossentropy", Adds(ops.sum))
    reason = Job(model, 12, memfit.Size(0), Fidelity.NEAR, data=(X, Y)).why_not_micro_batches
    assert reason is not None
    assert "is a sum over the samples" in reason
    of_each = model_with("binary_crossentropy", Adds(lambda x: ops.sum(x, axis=-1)))
    job = Job(of_each, 12, memfit.Size(0), Fidelity.NEAR, data=(X, Y))
    assert (job.why_not_micro_batches, job.losses_differ) == (None, None)


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        (1.0, 1.0 + 1e-6, True),
        (1.0, 1.1, False),
        (np.inf, np.inf, True),
        (np.inf, 1.0, False),
        ([np.inf, 1.0], [np.inf, 2.0], False),
        ([np.nan, 1.0], [np.nan, 1.0], True),
        ([0.0, 1.0], [0.0], False),
    ],
)
def test_an_infinite_result_does_not_make_others_agree(one: Any, two: Any, same: bool):
    assert agree(one, two, 1e-4) is same


def _choose_from_a_batch_that_fills_the_memory() -> int:
    batch = tf.ones((8, 100, 2**10))
    held = [tf.ones((2, 2**20)) for _ in range(4)]
    chosen = choose_samples((batch,), 8)[0]
    return len(held) + len(chosen)


def test_samples_are_chosen_where_the_device_has_no_memory_left_for_them() -> None:
    assert in_arena(_choose_from_a_batch_that_fills_the_memory, memory="38MiB") == 12


def test_what_the_device_has_no_room_to_try_is_tried_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise micro-batches would be near, or refused, just where they are needed."""

    def run_out(*_: Any) -> Any:  # in this process only
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    monkeypatch.setattr(exactness, "_try", run_out)
    samples = (X, Y.astype("float32"))
    assert find_loss_difference(model_with(one_mean), samples) is None
    story = find_loss_difference(model_with(dice), samples)
    assert story is not None
    assert "could not be tried" not in story


def test_text_of_a_pipeline_is_tried_in_parts() -> None:
    words = [f"word {number}" for number in range(5)]
    x = keras.Input((), dtype="string")
    known = layers.StringLookup(vocabulary=words, num_oov_indices=0, mask_token=None)(x)
    model = keras.Model(x, layers.Dense(1)(Adds(ops.mean)(layers.Embedding(5, 3)(known))))
    model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((words * 4, np.zeros((20, 1)))).batch(10)
    assert Job(model, 10, memfit.Size("1GiB"), Fidelity.EXACT, data).losses_differ is None
