"""Random networks over Keras's layers, as plain data that hypothesis can shrink and a script can hold."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from hypothesis import strategies as st
from keras import layers

# A network is {"input": kind, "body": [[name, number], ...], "head": name, ...}: lists, texts and numbers alone.
Network = dict[str, Any]

SHAPES = {"vector": (10,), "series": (7, 6), "tokens": (7,), "image": (8, 8, 3), "volume": (4, 6, 6, 2)}
VOCABULARY = 12
SIDE = (4,)  # a second input

# By the rank of a sample: what may come next. Each takes a small number, whatever it makes of it.
ANY: dict[str, Callable[[int], Any]] = {
    "dropout": lambda n: layers.Dropout(0.2 + 0.1 * (n % 3)),
    "gaussian noise": lambda n: layers.GaussianNoise(0.1),
    "gaussian dropout": lambda n: layers.GaussianDropout(0.2),
    "alpha dropout": lambda n: layers.AlphaDropout(0.2),
    "batch norm": lambda n: layers.BatchNormalization(momentum=0.9, center=n % 2 == 0),
    "layer norm": lambda n: layers.LayerNormalization(),
    "rms norm": lambda n: layers.RMSNormalization(),
    "unit norm": lambda n: layers.UnitNormalization(),
    "group norm": lambda n: layers.GroupNormalization(groups=-1),
    "activation": lambda n: layers.Activation(("relu", "gelu", "tanh", "silu", "elu", "softplus")[n % 6]),
    "prelu": lambda n: layers.PReLU(),
    "leaky relu": lambda n: layers.LeakyReLU(0.1),
    "dense": lambda n: layers.Dense(4 + n % 5, activation=("relu", None, "tanh")[n % 3]),
    "regularised dense": lambda n: layers.Dense(5, kernel_regularizer="l2", activity_regularizer="l2"),
    "frozen dense": lambda n: layers.Dense(5, trainable=False),
    "rescaling": lambda n: layers.Rescaling(0.5, 0.1),
    "softmax": lambda n: layers.Softmax(),
    "relu": lambda n: layers.ReLU(max_value=1.5, negative_slope=0.1),
    "activity": lambda n: layers.ActivityRegularization(l2=0.01),
    "spectral": lambda n: layers.SpectralNormalization(layers.Dense(5)),
    "lora": lambda n: layers.Dense(5, lora_rank=2),
}
BY_RANK: dict[int, dict[str, Callable[[int], Any]]] = {
    1: {"einsum": lambda n: layers.EinsumDense("ab,bc->ac", output_shape=5, bias_axes="c")},
    2: {
        "conv1d": lambda n: layers.Conv1D(4 + n % 3, 2 + n % 2, padding=("same", "causal")[n % 2]),
        "separable1d": lambda n: layers.SeparableConv1D(5, 3, padding="same", activation="relu"),
        "depthwise1d": lambda n: layers.DepthwiseConv1D(3, padding="same"),
        "transpose1d": lambda n: layers.Conv1DTranspose(5, 3, strides=1 + n % 2, padding="same"),
        "pool1d": lambda n: (layers.MaxPooling1D, layers.AveragePooling1D)[n % 2](2, padding="same"),
        "spatial dropout1d": lambda n: layers.SpatialDropout1D(0.3),
        "lstm": lambda n: layers.LSTM(5, return_sequences=True, dropout=0.1 * (n % 2)),
        "gru": lambda n: layers.GRU(5, return_sequences=True, recurrent_dropout=0.2 * (n % 2)),
        "simple rnn": lambda n: layers.SimpleRNN(5, return_sequences=True, go_backwards=n % 2 == 1),
        "bidirectional": lambda n: layers.Bidirectional(layers.GRU(3, return_sequences=True)),
        "time distributed": lambda n: layers.TimeDistributed(layers.Dense(5, activation="relu")),
        "attention": lambda n: SelfAttention(n),
        "upsampling1d": lambda n: layers.UpSampling1D(2),
        "padding1d": lambda n: layers.ZeroPadding1D(1),
        "cells": lambda n: layers.RNN(
            [layers.LSTMCell(4), layers.GRUCell(4, dropout=0.1)], return_sequences=True
        ),
    },
    3: {
        "conv2d": lambda n: layers.Conv2D(4 + n % 3, 3, strides=1 + n % 2, padding="same"),
        "dilated conv2d": lambda n: layers.Conv2D(4, 3, dilation_rate=2, padding="same", activation="relu"),
        "grouped conv2d": lambda n: layers.Conv2D(4, 1, use_bias=False),
        "depthwise2d": lambda n: layers.DepthwiseConv2D(3, padding="same", activation="silu"),
        "separable2d": lambda n: layers.SeparableConv2D(5, 3, padding="same"),
        "transpose2d": lambda n: layers.Conv2DTranspose(4, 3, strides=1 + n % 2, padding="same"),
        "pool2d": lambda n: (layers.MaxPooling2D, layers.AveragePooling2D)[n % 2](2, padding="same"),
        "upsampling2d": lambda n: layers.UpSampling2D(2, interpolation=("nearest", "bilinear")[n % 2]),
        "padding2d": lambda n: layers.ZeroPadding2D(1),
        "spatial dropout2d": lambda n: layers.SpatialDropout2D(0.3),
        "drop samples": lambda n: layers.Dropout(0.3, noise_shape=(None, 1, 1, 1)),
        "random flip": lambda n: layers.RandomFlip("horizontal"),
        "random turn": lambda n: (layers.RandomRotation, layers.RandomZoom)[n % 2](0.1),
        "random shift": lambda n: layers.RandomTranslation(0.1, 0.1),
        "random light": lambda n: (layers.RandomContrast, layers.RandomBrightness)[n % 2](0.1),
        "noise": lambda n: Noise(),
    },
    4: {
        "conv3d": lambda n: layers.Conv3D(3 + n % 2, 3, padding="same"),
        "transpose3d": lambda n: layers.Conv3DTranspose(3, 2, padding="same"),
        "strided conv3d": lambda n: layers.Conv3D(3, 2, strides=2, padding="same", activation="relu"),
        "padding3d": lambda n: layers.ZeroPadding3D(1),
        "pool3d": lambda n: (layers.MaxPooling3D, layers.AveragePooling3D)[n % 2](2, padding="same"),
        "upsampling3d": lambda n: layers.UpSampling3D(2),
        "spatial dropout3d": lambda n: layers.SpatialDropout3D(0.3),
        "conv lstm": lambda n: layers.ConvLSTM2D(3, 2, padding="same", return_sequences=True),
        "frames": lambda n: layers.TimeDistributed(layers.Conv2D(3, 2, padding="same")),
    },
}
# What a layer, or two, are put into.
SHAPES_OF_BLOCKS = ("plain", "plain", "plain", "residual", "concat", "multiply", "nested", "shared")
HEADS = {
    "mse": (None, lambda n: "mse"),
    "huber": (None, lambda n: keras.losses.Huber(reduction=("sum_over_batch_size", "sum")[n % 2])),
    "softmax": ("softmax", lambda n: keras.losses.CategoricalCrossentropy(label_smoothing=0.1 * (n % 2))),
    "logits": (None, lambda n: keras.losses.SparseCategoricalCrossentropy(from_logits=True)),
    "probabilities": ("softmax", lambda n: "sparse_categorical_crossentropy"),
    "sigmoid": ("sigmoid", lambda n: "binary_crossentropy"),
    "cosine": (None, lambda n: "cosine_similarity"),
}
SPARSE = ("logits", "probabilities")  # whose targets are numbers of classes
# An epsilon far above rounding: a gradient that is zero but for rounding would move a weight by a whole step.
OPTIMIZERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "sgd": lambda o: keras.optimizers.SGD(momentum=0.9, nesterov=True, **o),
    "plain sgd": lambda o: keras.optimizers.SGD(**o),
    "adam": lambda o: keras.optimizers.Adam(epsilon=1e-2, **o),
    "amsgrad": lambda o: keras.optimizers.Adam(amsgrad=True, epsilon=1e-2, **o),
    "adamw": lambda o: keras.optimizers.AdamW(epsilon=1e-2, **o),
    "rmsprop": lambda o: keras.optimizers.RMSprop(centered=True, momentum=0.5, epsilon=1e-2, **o),
    "adagrad": lambda o: keras.optimizers.Adagrad(epsilon=1e-2, **o),
    "nadam": lambda o: keras.optimizers.Nadam(epsilon=1e-2, **o),
    "adadelta": lambda o: keras.optimizers.Adadelta(epsilon=1e-2, **o),
    "adamax": lambda o: keras.optimizers.Adamax(epsilon=1e-2, **o),
    "ftrl": lambda o: keras.optimizers.Ftrl(l1_regularization_strength=1e-3, **o),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "clipnorm": {"clipnorm": 0.5},
    "global clipnorm": {"global_clipnorm": 0.5},
    "clipvalue": {"clipvalue": 0.1},
    "ema": {"use_ema": True, "ema_overwrite_frequency": 2},
    "accumulation": {"gradient_accumulation_steps": 2},
}


class Noise(layers.Layer):
    """A layer that a user has written, which draws with `keras.random`."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds = keras.random.SeedGenerator(5)

    def call(self, x: Any, training: bool = False) -> Any:
        if not training:
            return x
        return x * keras.random.uniform((keras.ops.shape(x)[0], 1, 1, 1), 0.5, 1.5, seed=self.seeds)


class MixedPrecision(keras.DTypePolicy):
    """Computes in float32 with variables in float64: the casts of mixed precision, without its rounding."""

    def __init__(self) -> None:
        super().__init__("float64")

    @property
    def compute_dtype(self) -> str:
        return "float32"


class SelfAttention(layers.Layer):
    """A transformer's attention, as a layer of one input."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.attention = layers.MultiHeadAttention(2, 3, dropout=0.1 * (number % 2))
        self.supports_masking = True

    def build(self, shape: Any) -> None:
        self.attention.build(shape, shape)
        super().build(shape)

    def call(self, x: Any, training: bool = False) -> Any:
        return x + self.attention(x, x, training=training, use_causal_mask=self.number % 3 == 0)


class Wrapped(keras.Model):
    """A subclassed model around another."""

    def __init__(self, inner: keras.Model) -> None:
        super().__init__()
        self.inner = inner

    def call(self, x: Any, training: bool = False) -> Any:
        return self.inner(x, training=training)


@st.composite
def networks(draw: Any) -> Network:
    """Draws a network, and how it is trained."""
    kind = draw(st.sampled_from(sorted(SHAPES)))
    rank = 2 if kind == "tokens" else len(SHAPES[kind])
    names = sorted(ANY) + 3 * sorted(BY_RANK[rank])
    layer = st.tuples(st.sampled_from(names), st.integers(0, 5)).map(list)
    block = st.tuples(st.sampled_from(SHAPES_OF_BLOCKS), st.lists(layer, min_size=1, max_size=2)).map(list)
    return {
        "input": kind,
        "body": draw(st.lists(block, min_size=1, max_size=5)),
        "heads": draw(st.lists(st.sampled_from(sorted(HEADS)), min_size=1, max_size=2)),
        "number": draw(st.integers(0, 5)),
        "optimizer": draw(st.sampled_from(sorted(OPTIMIZERS))),
        "option": draw(st.sampled_from(sorted(OPTIONS))),
        "schedule": draw(st.booleans()),
        "loss_scale": draw(st.booleans()),
        "mixed": draw(st.booleans()),
        "side": draw(st.booleans()),
        "weights": draw(st.booleans()),
        "subclassed": draw(st.booleans()),
        "batch": draw(st.integers(2, 7)),
        "micro_batch": draw(st.one_of(st.none(), st.integers(1, 5))),
        "segments": draw(st.one_of(st.none(), st.integers(0, 9))),
    }


def build(network: Network) -> keras.Model:
    """Builds and compiles a network, the same every time."""
    keras.utils.set_random_seed(11)
    if network["mixed"]:
        keras.config.set_dtype_policy(MixedPrecision())
    kind = network["input"]
    x = inputs = keras.Input(SHAPES[kind], dtype="int32" if kind == "tokens" else None)
    if kind == "tokens":
        x = layers.Embedding(VOCABULARY, 6, mask_zero=network["number"] % 2 == 0)(x)
    elif kind == "series" and network["number"] % 3 == 0:
        x = layers.Masking(0.0)(x)
    for block, members in network["body"]:
        x = _add(block, [(_layer(name, x), number) for name, number in members], x)
    side = keras.Input(SIDE) if network["side"] else None
    outputs, losses = [], {}
    for place, name in enumerate(network["heads"]):
        activation, loss = HEADS[name]
        flat = layers.Flatten()(x) if place or len(x.shape) > 3 or kind == "vector" else _pooled(x)
        if side is not None:
            flat = layers.Concatenate()([flat, layers.Dense(3, activation="tanh")(side)])
        key = f"head{place}"
        outputs.append(layers.Dense(3, activation=activation, name=key)(flat))
        losses[key] = loss(network["number"])
    model = keras.Model(
        inputs if side is None else [inputs, side],
        outputs[0] if len(outputs) == 1 else dict(zip(losses, outputs, strict=True)),
    )
    if network["subclassed"]:
        model = Wrapped(model)
        shape = (None, *SHAPES[kind])
        model.build(shape if side is None else [shape, (None, *SIDE)])
    rate: Any = 0.02
    if network["schedule"]:
        rate = keras.optimizers.schedules.ExponentialDecay(0.02, 1, 0.8)
    optimizer = OPTIMIZERS[network["optimizer"]]({"learning_rate": rate, **OPTIONS[network["option"]]})
    if network["loss_scale"]:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=8.0, dynamic_growth_steps=2)
    one = len(losses) == 1
    metric = "accuracy" if network["heads"][0] in SPARSE else "mae"
    model.compile(
        optimizer,
        losses["head0"] if one else losses,
        metrics=[metric] if one else {"head0": [metric]},
        weighted_metrics=[metric] if one and network["weights"] else None,
        jit_compile=False,
    )
    return model


def data(network: Network, steps: int) -> tuple[Any, Any, Any]:
    """Makes the samples, targets and weights of so many batches; the last one is shorter."""
    random = np.random.default_rng(5)
    samples = steps * network["batch"] - 1
    shape = (samples, *SHAPES[network["input"]])
    tokens = network["input"] == "tokens"
    x: Any = random.integers(0, VOCABULARY, shape).astype("int32") if tokens else random.normal(size=shape)
    if network["side"]:
        x = [x, random.normal(size=(samples, *SIDE))]
    y = {}
    for place, name in enumerate(network["heads"]):
        classes = random.integers(0, 3, samples)
        if name in SPARSE:
            y[f"head{place}"] = classes
        elif name in ("softmax", "sigmoid"):
            y[f"head{place}"] = np.eye(3)[classes]
        else:
            y[f"head{place}"] = random.normal(size=(samples, 3))
    one = len(y) == 1
    weights = random.uniform(0.2, 2.0, samples) if network["weights"] and one else None
    return x, y["head0"] if one else y, weights


def _layer(name: str, x: Any) -> Callable[[int], Any]:
    return ANY[name] if name in ANY else BY_RANK[len(x.shape) - 1][name]


def _add(block: str, members: list[tuple[Any, int]], x: Any) -> Any:
    """Puts layers behind a tensor: in a line, beside it, in a model of their own, or twice."""
    made = [make(number) for make, number in members]

    def run(tensor: Any) -> Any:
        for layer in made:
            tensor = layer(tensor)
        return tensor

    if block == "nested":
        start = keras.Input(x.shape[1:])
        return keras.Model(start, run(start))(x)
    y = run(x)
    if block == "concat" and y.shape[:-1] == x.shape[:-1]:
        return layers.Concatenate()([x, y])
    if y.shape != x.shape:
        return y
    if block == "residual":
        return layers.Add()([x, y])
    if block == "multiply":
        return layers.Multiply()([x, y])
    return run(y) if block == "shared" else y


def _pooled(x: Any) -> Any:
    pools = {3: layers.GlobalAveragePooling1D, 4: layers.GlobalAveragePooling2D}
    return pools[len(x.shape)]()(x) if len(x.shape) in pools else layers.Flatten()(x)
