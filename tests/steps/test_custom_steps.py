"""Steps as people write them are rematerialised: the same weights as stock Keras's training, with less kept."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import memfit
from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.sizes import Size
from memfit.steps.recipe import Recipe
from memfit.steps.train_step import build
from prepared import in_arena

BATCH = 256


def network(inputs: int, outputs: int, *more: Any) -> keras.Model:
    body = [layers.Dense(48, activation="tanh") for _ in range(3)]
    return keras.Sequential([keras.Input((inputs,)), *body, *more, layers.Dense(outputs)])


class Stepping(keras.Model):
    """A model that shows the mean of its losses."""

    def __init__(self) -> None:
        super().__init__()
        self.seed = keras.random.SeedGenerator(3)
        self.mean = keras.metrics.Mean(name="loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.mean]

    def update(self, tape: Any, loss: Any, weights: Any, optimizer: Any) -> None:
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    def show(self, loss: Any) -> dict[str, Any]:
        self.mean.update_state(loss)
        return {"loss": self.mean.result()}


class Variational(Stepping):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = network(6, 8, layers.BatchNormalization()), network(4, 6)

    def train_step(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            mean, logarithm = tf.split(self.encoder(x, training=True), 2, axis=1)
            noise = keras.random.normal(tf.shape(mean), dtype=mean.dtype, seed=self.seed)
            rebuilt = self.decoder(mean + tf.exp(0.5 * logarithm) * noise, training=True)
            kl = -0.5 * tf.reduce_mean(1 + logarithm - mean**2 - tf.exp(logarithm))
            loss = tf.reduce_mean((rebuilt - x) ** 2) + 0.1 * kl
        self.update(tape, loss, self.trainable_weights, self.optimizer)
        return self.show(loss)


class Adversarial(Stepping):
    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = network(4, 6), network(6, 1, layers.Dropout(0.2))
        self.entropy = keras.losses.BinaryCrossentropy(from_logits=True)
        self.second = keras.optimizers.Adam(0.01)

    def train_step(self, x: Any) -> Any:
        noise = keras.random.normal((tf.shape(x)[0], 4), dtype=x.dtype, seed=self.seed)
        with tf.GradientTape() as tape:
            true = self.critic(x, training=True)
            fake = self.critic(self.generator(noise, training=True), training=True)
            loss = self.entropy(tf.ones_like(true), true) + self.entropy(tf.zeros_like(fake), fake)
        self.update(tape, loss, self.critic.trainable_weights, self.optimizer)
        with tf.GradientTape() as tape:
            fake = self.critic(self.generator(noise, training=True), training=True)
            fooled = self.entropy(tf.ones_like(fake), fake)
        self.update(tape, fooled, self.generator.trainable_weights, self.second)
        return self.show(loss)


class Contrastive(Stepping):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = network(6, 8)

    def train_step(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            views = [
                x + 0.1 * keras.random.normal(tf.shape(x), dtype=x.dtype, seed=self.seed) for _ in range(2)
            ]
            one, two = (tf.math.l2_normalize(self.encoder(view, training=True), 1) for view in views)
            logits, own = tf.matmul(one, two, transpose_b=True) / 0.1, tf.range(tf.shape(x)[0])
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(own, logits, from_logits=True))
        self.update(tape, loss, self.trainable_weights, self.optimizer)
        return self.show(loss)


class Distilled(Stepping):
    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student = network(6, 3), network(6, 3, layers.Dropout(0.2))
        self.teacher.trainable = False

    def train_step(self, x: Any) -> Any:
        aim = tf.nn.softmax(self.teacher(x, training=False) / 2)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                keras.losses.kl_divergence(aim, tf.nn.softmax(self.student(x, training=True) / 2))
            )
        self.update(tape, loss, self.student.trainable_weights, self.optimizer)
        return self.show(loss)


class SelfTaught(Stepping):
    """Its second and third tape do not record all that their losses are computed from."""

    def __init__(self) -> None:
        super().__init__()
        deeper = [layers.Dense(48, activation="tanh") for _ in range(3)]
        self.net, self.second = network(6, 3, *deeper), keras.optimizers.Adam(0.01)

    def train_step(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.net(x, training=True) - x[:, :3]) ** 2)
        self.update(tape, loss, self.trainable_weights, self.optimizer)
        aim = self.net(-x, training=True)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.net(x, training=True) - aim) ** 2)
        self.update(tape, loss, self.trainable_weights, self.second)
        with tf.GradientTape() as tape:
            with tape.stop_recording():
                aim = self.net(2 * x, training=True)
            loss = tf.reduce_mean((self.net(x, training=True) - aim) ** 2)
        self.update(tape, loss, self.trainable_weights, self.second)
        return self.show(loss)


def prepared(make: Callable[[], Stepping]) -> Stepping:
    keras.utils.set_random_seed(1)
    model = make()
    model.compile(keras.optimizers.Adam(0.01))
    return model


@pytest.mark.parametrize("make", [Variational, Adversarial, Contrastive, Distilled, SelfTaught])
def test_a_custom_step_rematerialised_trains_as_stock_keras_does(make, in_float64):
    x = np.random.default_rng(0).normal(size=(BATCH, 6))
    stock, model = prepared(make), prepared(make)
    stock.fit(x, batch_size=BATCH, epochs=3, verbose=0, shuffle=False)
    choices, why = Job(model, BATCH, Size(0), Fidelity.EXACT, data=x).segment_choices
    assert why is None
    assert choices[-1].activation_bytes < 0.75 * choices[-1].stock_bytes
    spec = tf.TensorSpec([None, 6], x.dtype)
    step = build(model, Recipe(segments=choices[-1]))
    assert any("recomputed/" in op.name for op in step.trace(spec).graph.get_operations())
    for _ in range(3):
        step.run(tf.constant(x), spec)
    for one, two in zip(stock.variables, model.variables, strict=True):
        np.testing.assert_allclose(two.numpy(), one.numpy(), rtol=1e-7, atol=1e-10, err_msg=one.path)


class Wide(Stepping):
    """Large activations, small weights."""

    def __init__(self) -> None:
        super().__init__()
        body = [layers.Dense(2048), *(layers.Activation("tanh") for _ in range(8)), layers.Dense(1)]
        self.body = keras.Sequential([keras.Input((16,)), *body])

    def train_step(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.body(x, training=True) - x[:, :1]) ** 2)
        self.update(tape, loss, self.trainable_weights, self.optimizer)
        return self.show(loss)


def planned() -> dict[str, Any]:
    x = np.random.default_rng(1).normal(size=(512, 16)).astype("float32")
    stock = prepared(Wide)
    stock.fit(x, batch_size=512, epochs=3, verbose=0)
    model = prepared(Wide)
    history = memfit.fit(model, x, batch_size=512, epochs=3, verbose=0, memory="24MiB")
    return {
        "weights": (stock.get_weights(), model.get_weights()),
        "run": history.memory.to_json(),
    }


def test_fit_plans_a_custom_step_and_trains_it_to_the_same_weights():
    found = in_arena(planned, memory="400MiB")
    plan = found["run"]["plan"]
    assert plan["stock"] > plan["memory"] >= plan["predicted"]
    assert plan["recipe"]["segments"] is not None
    assert found["run"]["measured"] <= plan["memory"]
    for one, two in zip(*found["weights"], strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-4, atol=1e-6)


class Probed(Stepping):
    """Its step trains only a head, which `call` does not know, and which is built in the first step."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = network(6, 8), layers.Dense(3)

    def build(self, input_shape: Any) -> None:
        """Has nothing to do: the encoder is built, and `call` knows nothing else."""

    def call(self, x: Any) -> Any:
        return self.encoder(x)

    def train_step(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.head(self.encoder(x)) - x[:, :3]) ** 2)
        self.update(tape, loss, self.head.trainable_weights, self.optimizer)
        return self.show(loss)


@pytest.mark.parametrize("scaled", [False, True])
def test_the_optimizer_of_a_custom_step_is_built_for_what_that_step_trains(scaled, in_float64):
    x = np.random.default_rng(2).normal(size=(8, 6))
    stock, model = prepared(Probed), prepared(Probed)
    for one in (stock, model):
        adam = keras.optimizers.Adam(0.01)
        one.compile(keras.optimizers.LossScaleOptimizer(adam, dynamic_growth_steps=2) if scaled else adam)
        one(x)
    stock.fit(x, batch_size=8, epochs=5, verbose=0, shuffle=False)
    step, spec = build(model, Recipe()), tf.TensorSpec([None, 6], x.dtype)
    for _ in range(5):
        step.run(tf.constant(x), spec)
    trained = ([*one.variables, *one.optimizer.variables] for one in (stock, model))
    for one, two in zip(*trained, strict=True):
        np.testing.assert_allclose(two.numpy(), one.numpy(), rtol=1e-9, atol=1e-12, err_msg=one.path)
