"""Networks of which little can be saved, or with odd orders of layers: few choices, and never a crash."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import memfit
from memfit.errors import InvalidInput
from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.steps.rematerialisation import find_choices, rematerialise
from training.parity import levers

pytestmark = pytest.mark.usefixtures("float64")


def one_dense() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), layers.Dense(3)])


def one_dense_of_one() -> keras.Model:
    return keras.Sequential([keras.Input((1,)), layers.Dense(1)])


def nothing() -> keras.Model:
    image = keras.Input((4,))
    return keras.Model(image, layers.Identity()(image))


def no_weights() -> keras.Model:
    image = keras.Input((8, 8, 3))
    return keras.Model(image, layers.Activation("relu")(layers.MaxPooling2D()(image)))


def frozen() -> keras.Model:
    model = keras.Sequential(
        [keras.Input((8,)), layers.Dense(16, activation="relu"), layers.Dropout(0.5), layers.Dense(2)]
    )
    model.trainable = False
    return model


def only_an_embedding() -> keras.Model:
    return keras.Sequential([keras.Input((5,), dtype="int32"), layers.Embedding(7, 3)])


def whole_numbers_out() -> keras.Model:
    image = keras.Input((4,))
    return keras.Model(image, keras.ops.argmax(layers.Dense(3)(image), axis=-1))


def a_layer_called_twice() -> keras.Model:
    x = image = keras.Input((16,))
    shared = layers.Dense(16, activation="gelu")
    for _ in range(4):
        x = shared(x)
    return keras.Model(image, shared(x))


def nested() -> keras.Model:
    inner = keras.Sequential([keras.Input((16,)), layers.Dense(16, activation="gelu"), layers.Dropout(0.1)])
    outer = keras.Sequential([keras.Input((16,)), inner, layers.Dense(16, activation="tanh"), inner])
    return keras.Sequential([keras.Input((16,)), outer, layers.Dense(2)])


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nested(), layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.out(self.inner(x))


def recurrent() -> keras.Model:
    return keras.Sequential([keras.Input((6, 4)), layers.LSTM(8), layers.Dense(2)])


def branches_of_unequal_length() -> keras.Model:
    """As in InceptionResNetV2: Keras calls layers of the short branch after later ones of the long branch."""

    def convolve(x: Any, size: int) -> Any:
        x = layers.Conv2D(6, size, padding="same", use_bias=False)(x)
        return layers.Activation("relu")(layers.BatchNormalization(scale=False)(x))

    x = image = keras.Input((8, 8, 6))
    for _ in range(3):
        long = convolve(convolve(convolve(x, 1), (1, 3)), (3, 1))
        joined = layers.Concatenate()([convolve(x, 1), long])
        x = layers.Activation("relu")(layers.Add()([x, layers.Conv2D(6, 1, padding="same")(joined)]))
    return keras.Model(image, layers.Dense(2)(layers.GlobalAveragePooling2D()(x)))


def gradients(model: keras.Model, call: Callable[..., Any], x: Any) -> list[Any]:
    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(call(x, training=True)))
        return tape.gradient(loss, model.trainable_variables)

    return [gradient.numpy() for gradient in step()]


@pytest.mark.parametrize("compiled", [False, True], ids=["graph", "XLA"])
@pytest.mark.parametrize(
    "build",
    [one_dense, one_dense_of_one, nothing, no_weights, frozen, only_an_embedding, whole_numbers_out],
    ids=lambda build: build.__name__,
)
def test_where_nothing_can_be_saved_there_are_no_choices(
    build: Callable[[], keras.Model], compiled: bool
) -> None:
    assert find_choices(build(), 4, compiled=compiled) == ()


@pytest.mark.parametrize(
    "build",
    [a_layer_called_twice, nested, recurrent, branches_of_unequal_length],
    ids=lambda build: build.__name__,
)
def test_what_little_can_be_saved_leaves_the_gradients_as_they_are(build: Callable[[], keras.Model]) -> None:
    model = build()
    for layer in model._flatten_layers():
        if isinstance(layer, layers.Dropout):
            layer.rate = 0.0
    x = np.random.default_rng(1).normal(size=(4, *model.input_shape[1:]))
    stock = gradients(model, model, x)
    for segments in find_choices(model, 4):
        for ours, theirs in zip(gradients(model, rematerialise(model, segments), x), stock, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-13)


def test_a_subclassed_model_is_searched_by_the_shapes_it_is_given() -> None:
    model = Subclassed()
    model(np.zeros((1, 16)))
    assert find_choices(model, 4, tf.TensorSpec((4, 16), "float64"))
    with pytest.raises(InvalidInput, match="Pass specs="):
        find_choices(model, 4)


class Adding(layers.Layer):
    """Makes a layer in every call, as many networks of tutorials do."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = layers.Dense(64, activation="softplus"), layers.Dense(8)

    def build(self, shape: Any) -> None:
        self.wide.build(shape)
        self.narrow.build((*shape[:-1], 64))
        self.built = True

    def call(self, x: Any) -> Any:
        return layers.add([x, self.narrow(layers.Activation("tanh")(self.wide(x)))])


class OwnStep(keras.Model):
    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


@pytest.mark.parametrize("kind", [keras.Model, OwnStep])
def test_layers_made_in_a_call_are_known_by_the_same_names_in_the_next(kind: type[keras.Model]) -> None:
    x = image = keras.Input((64, 8))
    for _ in range(4):
        x = Adding()(x)
    model = kind(image, x)
    model.compile(keras.optimizers.SGD(0.0), "mse", jit_compile=False)
    x, y = np.random.default_rng(0).random((2, 8, 64, 8))
    loss = model.fit(x, y, batch_size=8, verbose=0).history["loss"]
    job = Job(model, 8, memfit.Size("1GiB"), Fidelity.EXACT, (x, y))
    choices, _ = job.segment_choices
    for segments in choices[:: len(choices) - 1]:
        layers.add([x, y])
        plan = levers(model, 8, segments=segments)
        assert memfit.fit(model, x, y, plan=plan, verbose=0).history["loss"] == pytest.approx(loss, rel=1e-12)
