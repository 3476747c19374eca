"""Models as people write them, in the ways of Keras's examples: what memfit calls exact trains to stock's weights.

Each is trained in float64 by stock Keras and by memfit, whole and rematerialised, and in micro-batches where memfit
calls those exact for it. Which it must call exact, and which it must not, is part of the claim.
"""

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import memfit
from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.levers.micro_batches import MicroBatches
from memfit.sizes import Size
from memfit.steps.rematerialisation import find_choices
from training.parity import levers

BATCH, SAMPLES, WORDS = 8, 29, 40  # the last batch is shorter
RANDOM = np.random.default_rng(3)
TOKENS = RANDOM.integers(1, WORDS, (SAMPLES, 12)).astype("int32")
IMAGES = RANDOM.normal(size=(SAMPLES, 8, 8, 3))
LABELS = RANDOM.integers(0, 3, SAMPLES)
NUMBERS = RANDOM.normal(size=(SAMPLES, 1))


class TokenAndPosition(layers.Layer):
    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.tokens = layers.Embedding(WORDS, width, mask_zero=True)
        self.places = layers.Embedding(length, width)

    def call(self, x: Any) -> Any:
        return self.tokens(x) + self.places(ops.arange(ops.shape(x)[-1]))

    def compute_mask(self, x: Any, mask: Any = None) -> Any:
        return self.tokens.compute_mask(x)


class Block(layers.Layer):
    """A transformer block with one Dropout that is called twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = layers.MultiHeadAttention(2, width // 2, dropout=0.2)
        self.feed = keras.Sequential([layers.Dense(2 * width, "gelu"), layers.Dense(width)])
        self.norms = [layers.LayerNormalization(), layers.LayerNormalization()]
        self.dropout = layers.Dropout(0.3)
        self.supports_masking = True

    def call(self, x: Any, training: bool = False, mask: Any = None) -> Any:
        y = self.attention(x, x, use_causal_mask=True, training=training)
        x = self.norms[0](x + self.dropout(y, training=training))
        return self.norms[1](x + self.dropout(self.feed(x), training=training))


def gpt() -> keras.Model:
    inputs = keras.Input((None,), dtype="int32")
    x = TokenAndPosition(12, 8)(inputs)
    x = Block(8)(x)
    model = keras.Model(inputs, layers.Dense(WORDS)(x))
    model.compile(
        keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(0.01, 9), clipnorm=0.5),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],
    )
    return model


class Windows(layers.Layer):
    """Attention in windows, as in Swin: samples and windows become one dimension, in which numbers are drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = layers.MultiHeadAttention(1, 4, dropout=0.2)
        self.dropout = layers.Dropout(0.3)

    def build(self, shape: Any) -> None:
        self.bias = self.add_weight(shape=(9, shape[-1]), initializer="random_normal")
        self.numbers = np.arange(16) % 9

    def call(self, x: Any, training: bool = False) -> Any:
        y = ops.reshape(ops.roll(x, 1, axis=1), (-1, 2, 4, 2, 4, x.shape[-1]))
        y = ops.reshape(ops.transpose(y, (0, 1, 3, 2, 4, 5)), (-1, 16, x.shape[-1]))
        y = y + ops.take(self.bias, self.numbers, axis=0)
        y = self.dropout(self.attention(y, y, training=training), training=training)
        y = ops.reshape(y, (-1, 2, 2, 4, 4, x.shape[-1]))
        return x + ops.reshape(ops.transpose(y, (0, 1, 3, 2, 4, 5)), ops.shape(x))


def swin() -> keras.Model:
    inputs = keras.Input((8, 8, 3))
    x = Windows()(layers.Conv2D(4, 1)(inputs))
    model = keras.Model(
        inputs, layers.Dense(3)(layers.GlobalAveragePooling2D()(layers.LayerNormalization()(x)))
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01, global_clipnorm=1.0), loss, metrics=["accuracy"])
    return model


class Latents(layers.Layer):
    """Latent vectors that read the samples, as in a Perceiver: a weight that is repeated for each of them."""

    def build(self, shape: Any) -> None:
        self.latents = self.add_weight(shape=(4, 6), initializer="random_normal")
        self.attention = layers.MultiHeadAttention(2, 3)

    def call(self, x: Any, training: bool = False) -> Any:
        latents = ops.broadcast_to(self.latents, (ops.shape(x)[0], 4, 6))
        return self.attention(latents, x, training=training)


def perceiver() -> keras.Model:
    inputs = keras.Input((8, 8, 3))
    x = Latents()(layers.Reshape((64, 3))(layers.GaussianNoise(0.2)(inputs)))
    model = keras.Model(inputs, layers.Dense(1)(layers.Flatten()(x)))
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "huber")
    return model


class Squeeze(keras.Model):
    """A subclassed model: residual blocks with squeeze-and-excitation, a loss and a metric of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = layers.Conv2D(6, 3, padding="same", kernel_constraint="max_norm")
        self.convs = [layers.SeparableConv2D(6, 3, padding="same", activation="swish") for _ in range(2)]
        self.gates = [layers.Dense(6, "sigmoid", activity_regularizer="l2") for _ in range(2)]
        self.drop = layers.SpatialDropout2D(0.3)
        self.norm = layers.GroupNormalization(2)
        self.out = layers.Dense(3)

    def call(self, x: Any, training: bool = False) -> Any:
        x = self.stem(x)
        for conv, gate in zip(self.convs, self.gates, strict=True):
            y = self.norm(conv(x))
            x = x + self.drop(y * gate(ops.mean(y, axis=(1, 2), keepdims=True)), training=training)
        self.add_loss(0.01 * ops.mean(ops.square(x)))
        return self.out(ops.max(x, axis=(1, 2)))


def squeeze() -> keras.Model:
    model = Squeeze()
    model.compile(
        keras.optimizers.SGD(
            0.05, momentum=0.9, nesterov=True, weight_decay=0.01, use_ema=True, ema_momentum=0.8
        ),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model(IMAGES[:1])
    return model


def siamese() -> keras.Model:
    """Two inputs through one network, and a loss over their distance."""
    one, two = keras.Input((8, 8, 3)), keras.Input((8, 8, 3))
    tower = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(4, 3, 2),
            layers.PReLU(),
            layers.Flatten(),
            layers.Dense(5),
            layers.Dropout(0.2),
        ]
    )
    distance = ops.sqrt(ops.sum(ops.square(tower(one) - tower(two)), axis=1, keepdims=True) + 1e-9)
    model = keras.Model([one, two], distance)

    def contrastive(same: Any, distance: Any) -> Any:
        return same * ops.square(distance) + (1 - same) * ops.square(ops.maximum(1 - distance, 0))

    model.compile(keras.optimizers.RMSprop(0.003), contrastive)
    return model


def encoder_decoder() -> keras.Model:
    """Masked sequence to sequence, with the states of one layer given to another."""
    source, target = keras.Input((12,), dtype="int32"), keras.Input((12,), dtype="int32")
    table = layers.Embedding(WORDS, 6, mask_zero=True)
    _, state = layers.GRU(5, return_state=True, dropout=0.2)(table(source))
    x = layers.GRU(5, return_sequences=True)(table(target), initial_state=state)
    x = layers.Attention()([x, x])
    model = keras.Model([source, target], layers.TimeDistributed(layers.Dense(WORDS, "softmax"))(x))
    model.compile(
        keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", weighted_metrics=["accuracy"]
    )
    return model


def vision_transformer() -> keras.Model:
    inputs = keras.Input((8, 8, 3))
    x = layers.RandomFlip("horizontal")(inputs)
    x = layers.Dense(8)(ops.reshape(ops.image.extract_patches(x, 4), (-1, 4, 48)))
    x = x + layers.Embedding(4, 8)(np.arange(4))
    x = Block(8)(x)
    model = keras.Model(inputs, layers.Dense(3, "softmax")(layers.Flatten()(layers.Dropout(0.4)(x))))
    model.compile(keras.optimizers.Nadam(0.005), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def normalised_autoencoder() -> keras.Model:
    """BatchNormalization: whole batches alone are exact."""
    inputs = keras.Input((8, 8, 3))
    x = layers.LeakyReLU()(layers.BatchNormalization()(layers.Conv2D(6, 3, 2, "same")(inputs)))
    x = layers.UpSampling2D()(layers.SpatialDropout2D(0.2)(x))
    model = keras.Model(inputs, layers.Conv2DTranspose(3, 3, padding="same")(x))
    model.compile(keras.optimizers.Adamax(0.01), "log_cosh")
    return model


class Mixing(layers.Layer):
    """A layer that looks at the whole batch."""

    def call(self, x: Any) -> Any:
        return x - ops.mean(x, axis=0, keepdims=True)


def mixing() -> keras.Model:
    model = keras.Sequential(
        [keras.Input((8, 8, 3)), layers.Flatten(), Mixing(), layers.Dense(4, "tanh"), layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adagrad(0.05), "mse")
    return model


def contrastive_batch() -> keras.Model:
    """A loss between the samples of a batch, as in CLIP."""
    model = keras.Sequential(
        [keras.Input((8, 8, 3)), layers.Flatten(), layers.Dense(5), layers.UnitNormalization()]
    )

    def among_themselves(y: Any, z: Any) -> Any:
        return keras.losses.sparse_categorical_crossentropy(
            ops.arange(ops.shape(z)[0]), z @ ops.transpose(z), True
        )

    model.compile(keras.optimizers.SGD(0.1), among_themselves)
    return model


SHIFTED = np.roll(TOKENS, -1, 1)
SAME = (LABELS[::-1] == LABELS).astype("float64")[:, None]
# A model, its data, and whether micro-batches are exact for it.
MODELS: dict[str, tuple[Callable[[], keras.Model], Any, Any, bool]] = {
    "gpt": (gpt, TOKENS, SHIFTED, True),
    "swin": (swin, IMAGES, LABELS, True),
    "perceiver": (perceiver, IMAGES, NUMBERS, True),
    "squeeze and excitation": (squeeze, IMAGES, LABELS, True),
    "siamese": (siamese, [IMAGES, IMAGES[::-1].copy()], SAME, True),
    "encoder and decoder": (encoder_decoder, [TOKENS, SHIFTED], TOKENS, True),
    "vision transformer": (vision_transformer, IMAGES, LABELS, True),
    "normalised autoencoder": (normalised_autoencoder, IMAGES, IMAGES, False),
    "a layer that mixes samples": (mixing, IMAGES, NUMBERS, False),
    "a loss between samples": (contrastive_batch, IMAGES, LABELS, False),
}


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


def train(
    name: str, recipe: Callable[[keras.Model], dict[str, Any]] | None
) -> tuple[list[Any], dict[str, Any]]:
    make, x, y, _ = MODELS[name]
    keras.utils.set_random_seed(5)
    model = make()
    fit = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    if recipe is None:
        history = model.fit(x, y, **fit)
    else:
        history = memfit.fit(model, x, y, plan=levers(model, BATCH, **recipe(model)), **fit)
        assert not [event for event in history.memory.events if event.phase]
    variables = [(v.path, np.asarray(v)) for v in (*model.variables, *model.optimizer.variables)]
    return variables, history.history


def specs(x: Any) -> Any:
    return keras.tree.map_structure(lambda leaf: tf.TensorSpec((BATCH, *leaf.shape[1:]), leaf.dtype), x)


@pytest.mark.parametrize("name", MODELS)
def test_what_is_called_exact_trains_to_stocks_weights(name: str) -> None:
    _, x, y, exact = MODELS[name]
    stock, shown = train(name, None)

    def rematerialise(model: keras.Model) -> dict[str, Any]:
        choices = find_choices(model, BATCH, None if getattr(model, "inputs", None) else specs(x))
        return {"segments": choices[-1]} if choices else {}

    recipes: list[Callable[[keras.Model], dict[str, Any]]] = [rematerialise]
    keras.utils.set_random_seed(5)
    model = MODELS[name][0]()
    job = Job(model, BATCH, Size(0), Fidelity.EXACT, data=(x, y))
    lever = MicroBatches()
    # Whether a loss adds up from parts is seen when training begins.
    if name != "a loss between samples":
        assert (lever.why_not(job) is None and lever.fidelity(job) == Fidelity.EXACT) == exact
    if exact:
        recipes.append(lambda model: {"micro_batch": 3, **rematerialise(model)})
    for recipe in recipes:
        ours, logs = train(name, recipe)
        for key, values in shown.items():
            np.testing.assert_allclose(logs[key], values, rtol=1e-9, err_msg=key)
        for (path, one), (_, two) in zip(stock, ours, strict=True):
            np.testing.assert_allclose(two, one, rtol=1e-9, atol=1e-10, err_msg=path)


def test_a_loss_between_samples_is_not_computed_in_parts() -> None:
    with pytest.raises(memfit.InvalidInput, match="a mean over the samples"):
        train("a loss between samples", lambda _: {"micro_batch": 3})
