"""Micro-batches give the weights, the history and the optimizer state of stock Keras at the full batch."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

import memfit
from memfit.steps.micro_batches.additivity import find_loss_difference
from prepared import run_forked
from training.parity import assert_same_training, levers

RNG = np.random.default_rng(0)
X = RNG.normal(size=(72, 6)).astype("float32")  # 72 = 4 batches of 16 and one of 8
Y = RNG.integers(0, 3, 72)
WEIGHT = RNG.uniform(0.1, 3.0, 72).astype("float32")
IDS = RNG.integers(0, 5, (72, 7))  # 0 is masked
IDS[16:21] = 0  # a micro-batch of 5 with nothing to learn from
TAGS = RNG.integers(0, 3, (72, 7))


def dense(**compiling: Any) -> keras.Model:
    model = keras.Sequential(
        [keras.Input((6,)), layers.Dense(8, activation="tanh"), layers.Dense(3, activation="softmax")]
    )
    model.compile(
        **{
            "optimizer": keras.optimizers.SGD(0.2, momentum=0.9),
            "loss": "sparse_categorical_crossentropy",
            "metrics": ["accuracy"],
            **compiling,
        }
    )
    return model


def data(**more: Any) -> dict[str, Any]:
    """20 updates of whole batches: a shorter one is traced again, and is tested on its own."""
    return {"x": X[:64], "y": Y[:64], "batch_size": 16, "epochs": 5, **more}


def with_short_batch(**more: Any) -> dict[str, Any]:
    return {"x": X, "y": Y, "batch_size": 16, "epochs": 4, **more}


def all_that_an_optimizer_does() -> keras.optimizers.Optimizer:
    return keras.optimizers.AdamW(
        keras.optimizers.schedules.ExponentialDecay(0.02, 3, 0.8),
        weight_decay=0.1,
        global_clipnorm=0.3,
        use_ema=True,
        ema_momentum=0.9,
        ema_overwrite_frequency=7,
    )


@pytest.mark.parametrize("size", [5, 16, 40])
def test_short_parts_short_last_batch_and_parts_larger_than_the_batch_change_nothing(size: int) -> None:
    assert_same_training(dense, with_short_batch, micro_batch=size)


@pytest.mark.parametrize(
    "size", [5, 8]
)  # the last batch: a loop of one round and a rest, a loop of one round
def test_xla_computes_equal_parts_in_a_loop_and_a_shorter_one_after_it(size: int) -> None:
    # One epoch: in the next, XLA would compile the whole batch again, for a trace of any batch size.
    fit = lambda: with_short_batch(epochs=1)  # noqa: E731
    assert_same_training(lambda: dense(jit_compile=True), fit, micro_batch=size, updates=5)


def test_schedules_ema_clipping_and_weight_decay_count_real_updates() -> None:
    assert_same_training(lambda: dense(optimizer=all_that_an_optimizer_does()), data, micro_batch=5)


def test_loss_scaling_scales_the_gradient_of_the_whole_batch() -> None:
    def make() -> keras.Model:
        inner = keras.optimizers.SGD(0.1, clipvalue=0.02)
        return dense(optimizer=keras.optimizers.LossScaleOptimizer(inner, dynamic_growth_steps=6))

    assert_same_training(make, data, micro_batch=5)


def test_accumulation_of_keras_counts_whole_batches() -> None:
    optimizer = lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)  # noqa: E731
    assert_same_training(lambda: dense(optimizer=optimizer()), data, micro_batch=5, updates=10)


@pytest.mark.parametrize("reduction", ["sum", "sum_over_batch_size", "mean_with_sample_weight", "none"])
def test_every_reduction_with_sample_weights(reduction: str) -> None:
    def make() -> keras.Model:
        loss = keras.losses.SparseCategoricalCrossentropy(reduction=reduction)
        scale = 0.002 if reduction in ("sum", "none") else 0.2
        return dense(loss=loss, optimizer=keras.optimizers.SGD(scale), weighted_metrics=["accuracy"])

    assert_same_training(make, lambda: data(sample_weight=WEIGHT[:64]), micro_batch=5)


def test_class_weights_validation_split_and_validation_parts() -> None:
    def fit() -> dict[str, Any]:
        return with_short_batch(
            class_weight={0: 0.2, 1: 1.0, 2: 4.0}, validation_split=0.25, epochs=5, validation_freq=2
        )

    assert_same_training(dense, fit, micro_batch=7, validation_batch=3)


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean_with_sample_weight", "sum"])
def test_masks_count_what_is_left_in_the_whole_batch(reduction: str) -> None:
    def make() -> keras.Model:
        model = keras.Sequential(
            [layers.Embedding(5, 4, mask_zero=True), layers.Dense(4, activation="tanh"), layers.Dense(3)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
        rate = 0.005 if reduction == "sum" else 0.3
        model.compile(keras.optimizers.SGD(rate), loss, metrics=["accuracy"], weighted_metrics=["accuracy"])
        return model

    temporal = np.repeat(WEIGHT[:, None], 7, axis=1) * np.linspace(0.5, 1.5, 7, dtype="float32")
    fit = lambda: {"x": IDS, "y": TAGS, "sample_weight": temporal, "batch_size": 16, "epochs": 4}  # noqa: E731
    assert_same_training(make, fit, micro_batch=5)


def test_a_mask_made_by_the_loss_counts_too() -> None:
    def make() -> keras.Model:
        model = keras.Sequential([keras.Input((7, 1)), layers.Dense(4, activation="tanh"), layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
        model.compile(keras.optimizers.SGD(0.3), loss)
        return model

    x = RNG.normal(size=(72, 7, 1)).astype("float32")
    assert_same_training(make, lambda: {"x": x, "y": TAGS, "batch_size": 16, "epochs": 4}, micro_batch=3)


class Lookup(layers.Layer):
    """A table that is no embedding layer."""

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(shape=(5, 4), initializer="random_normal")

    def call(self, ids: Any) -> Any:
        return ops.take(self.table, ids, axis=0)


class Positions(layers.Layer):
    """Adds a row for each position: the same rows for all samples, as many as the sequence is long."""

    def __init__(self, of_one_table: bool = False) -> None:
        super().__init__()
        self.ids = layers.Embedding(9, 4)
        self.places = self.ids if of_one_table else layers.Embedding(9, 4)

    def call(self, ids: Any) -> Any:
        return self.ids(ids) + self.places(ops.arange(ops.shape(ids)[1]))


class Tiled(Positions):
    """The same with a row for each position of each sample."""

    def call(self, ids: Any) -> Any:
        places = ops.broadcast_to(ops.arange(ops.shape(ids)[1]), ops.shape(ids))
        return self.ids(ids) + self.places(places)


# XLA takes seconds to compile a step: a few batches of it are enough.
@pytest.mark.parametrize(
    ("table", "jit_compile", "epochs"),
    [
        (lambda: layers.Embedding(5, 4), True, 1),
        (Lookup, False, 5),
        (Positions, True, 1),
        (Positions, False, 5),
        (lambda: Positions(of_one_table=True), False, 5),
        (Tiled, False, 5),
    ],
    ids=["embedding", "table", "positions under XLA", "positions", "one table for both", "tiled positions"],
)
def test_sparse_gradients_reach_the_optimizer_as_for_the_whole_batch(
    table: Any, jit_compile: bool, epochs: int
) -> None:
    def make() -> keras.Model:
        model = keras.Sequential(
            [keras.Input((7,), dtype="int32"), table(), layers.Flatten(), layers.Dense(3)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01, clipnorm=0.5), loss, jit_compile=jit_compile)
        return model

    fit = lambda: {"x": IDS[:64], "y": Y[:64], "batch_size": 16, "epochs": epochs}  # noqa: E731
    assert_same_training(make, fit, micro_batch=5, updates=4 * epochs)


def _count_compilations(folder: str) -> int:
    """How many programs XLA has compiled after three batches."""
    model = keras.Sequential([keras.Input((6,)), layers.Dense(3)])
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=True)
    memfit.fit(model, X[:48], Y[:48], plan=levers(model, 16, 5), verbose=0)
    return len(list(Path(folder).glob("*.before_optimizations.txt")))


def test_a_shorter_last_part_is_compiled_once_not_in_every_batch(tmp_path: Path) -> None:
    dump = f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text --xla_backend_optimization_level=0"
    assert run_forked(_count_compilations, str(tmp_path), XLA_FLAGS=dump, TF_ENABLE_ONEDNN_OPTS="0") == 1


def test_positions_of_a_length_that_the_graph_does_not_know() -> None:
    def make() -> keras.Model:
        inputs = keras.Input((None,), dtype="int32")
        x = layers.GlobalAveragePooling1D()(Positions()(inputs))
        model = keras.Model(inputs, layers.Dense(3)(x))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss, jit_compile=False)
        return model

    assert_same_training(
        make, lambda: {"x": IDS[:64], "y": Y[:64], "batch_size": 16, "epochs": 5}, micro_batch=4
    )


def two_heads(**compiling: Any) -> keras.Model:
    left, right = keras.Input((6,), name="left"), keras.Input((3,), name="right")
    body = layers.Dense(5, activation="tanh")(layers.Concatenate()([left, right]))
    outputs = {
        "kind": layers.Dense(3, activation="softmax", name="kind")(body),
        "size": layers.Dense(1, name="size")(body),
    }
    model = keras.Model({"left": left, "right": right}, outputs)
    model.compile(
        keras.optimizers.SGD(0.1),
        loss={"kind": "sparse_categorical_crossentropy", "size": keras.losses.Huber(reduction="sum")},
        loss_weights={"kind": 1.0, "size": 0.01},
        metrics={"kind": ["accuracy"], "size": ["mae"]},
        weighted_metrics={"size": ["mse"]},
        **compiling,
    )
    return model


def two_heads_data() -> dict[str, Any]:
    x = {"left": X, "right": X[:, :3] * 2}
    y = {"kind": Y, "size": X.sum(axis=1, keepdims=True)}
    return {"x": x, "y": y, "sample_weight": {"kind": WEIGHT, "size": WEIGHT[::-1].copy()}, "batch_size": 16}


def test_several_inputs_outputs_losses_weights_and_metrics() -> None:
    assert_same_training(two_heads, lambda: {**two_heads_data(), "epochs": 4}, micro_batch=5)


class Penalty(layers.Layer):
    def call(self, x: Any) -> Any:
        self.add_loss(0.1 * ops.mean(ops.square(x)))
        return x


def activity_losses_are_means() -> bool:
    """They are in Keras 3.15 and were sums in 3.12, where memfit refuses them."""
    layer = layers.Activation("linear", activity_regularizer="l1")
    layer(ops.ones((2, 1)))
    return float(layer.losses[0]) < 0.015


def test_added_losses_and_regularisers_count_once() -> None:
    activity = "l1" if activity_losses_are_means() else None

    def make() -> keras.Model:
        model = keras.Sequential(
            [
                keras.Input((6,)),
                layers.Dense(8, activation="tanh", kernel_regularizer="l2", activity_regularizer=activity),
                Penalty(),
                layers.Dense(3, activation="softmax", kernel_constraint="max_norm"),
            ]
        )
        model.compile(keras.optimizers.SGD(0.2), "sparse_categorical_crossentropy")
        return model

    assert_same_training(make, data, micro_batch=5)


class PenaltyOfEach(layers.Layer):
    def call(self, x: Any) -> Any:
        self.add_loss(
            0.01 * ops.sum(ops.square(x), axis=-1)
        )  # a number for every sample, which Keras adds up
        return x


def test_an_added_loss_of_every_sample_is_a_sum() -> None:
    def make() -> keras.Model:
        model = keras.Sequential(
            [keras.Input((6,)), layers.Dense(8), PenaltyOfEach(), layers.Dense(3, activation="softmax")]
        )
        model.compile(keras.optimizers.SGD(0.2), "sparse_categorical_crossentropy")
        return model

    assert_same_training(make, data, micro_batch=5)
    assert find_loss_difference(make(), (X[:16], Y[:16])) is None


class OwnLoss(keras.Model):
    """A subclassed model, not built, with its own loss and metrics, a frozen and an unused layer."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = layers.Dense(6, trainable=False)
        self.unused = layers.Dense(2)
        self.unused.build((None, 6))
        self.top = layers.Dense(3, activation="softmax")
        self.largest = keras.metrics.Mean(name="largest")

    def call(self, x: Any) -> Any:  # no `training`
        return self.top(self.frozen(x))

    def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:  # no `training`
        return super().compute_loss(x, y, y_pred, sample_weight) + 0.05 * ops.mean(ops.square(y_pred))

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        self.largest.update_state(ops.max(y_pred, axis=-1))
        return super().compute_metrics(x, y, y_pred, sample_weight)


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_overridden_compute_loss_and_compute_metrics_of_an_unbuilt_model() -> None:
    def make() -> keras.Model:
        model = OwnLoss()
        model.compile(keras.optimizers.SGD(0.5), "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    assert_same_training(make, data, micro_batch=5)


def test_under_xla_and_several_steps_per_execution() -> None:
    make = lambda: two_heads(jit_compile=True, steps_per_execution=2)  # noqa: E731

    def whole_batches() -> dict[str, Any]:
        data = two_heads_data()
        del data["batch_size"]
        # Without a shorter last batch, which XLA would compile too, for as long again.
        return {**keras.tree.map_structure(lambda array: array[:64], data), "batch_size": 16, "epochs": 5}

    assert_same_training(make, whole_batches, micro_batch=5)


def test_masks_under_xla() -> None:
    def make() -> keras.Model:
        model = keras.Sequential([layers.Embedding(5, 4, mask_zero=True), layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.3), loss, jit_compile=True)
        return model

    assert_same_training(
        make, lambda: {"x": IDS[:64], "y": TAGS[:64], "batch_size": 16, "epochs": 5}, micro_batch=5
    )


def test_recurrent_layers_under_xla_whose_weights_are_read_before_their_loop() -> None:
    def make() -> keras.Model:
        recurrent = [layers.Bidirectional(layers.LSTM(4, return_sequences=True)), layers.GRU(3)]
        model = keras.Sequential([keras.Input((7, 2)), *recurrent, layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.3), loss, jit_compile=True)
        return model

    # Without a shorter last batch, which XLA would compile too, for as long again.
    x = np.concatenate([X, X, X[:, :2]], axis=1).reshape(72, 7, 2)[:64]
    assert_same_training(make, lambda: {"x": x, "y": Y[:64], "batch_size": 16, "epochs": 5}, micro_batch=8)


def test_eagerly_with_masks() -> None:
    def make() -> keras.Model:
        model = keras.Sequential([layers.Embedding(5, 4, mask_zero=True), layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.3), loss, run_eagerly=True)
        return model

    assert_same_training(make, lambda: {"x": IDS, "y": TAGS, "batch_size": 16, "epochs": 4}, micro_batch=9)
