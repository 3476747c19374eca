"""The four small trainings that are verified: between them they have what memory is spent on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

STEPS = 3
_Network: TypeAlias = tuple[Any, Any, Any, int]  # inputs, outputs, optimizer, batch size


@dataclass(frozen=True)
class Training:
    """A compiled model and arrays of some batches."""

    model: Any
    x: Any
    y: Any
    batch_size: int


def build(name: str) -> Training:
    """Builds a training by its name, in the process that runs it; always with the same numbers."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(7)
    inputs, outputs, optimizer, batch_size = NETWORKS[name](keras)
    model = keras.Model(inputs, outputs)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    random = np.random.default_rng(7)
    shape = (STEPS * batch_size, *inputs.shape[1:])
    whole = "int" in str(inputs.dtype)
    x = random.integers(0, 1000, shape) if whole else random.normal(size=shape).astype("float32")
    return Training(model, x, random.integers(0, 10, STEPS * batch_size), batch_size)


def _convolutions(keras: Any) -> _Network:
    layers = keras.layers
    inputs = x = keras.Input((32, 32, 3))
    for filters in (32, 32, 64, 64):
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Dropout(0.3)(layers.GlobalAveragePooling2D()(x))
    return inputs, layers.Dense(10)(x), keras.optimizers.SGD(0.01, momentum=0.9), 64


def _transformer(keras: Any) -> _Network:
    layers = keras.layers
    inputs = keras.Input((96,), dtype="int32")
    x = layers.Embedding(1000, 128)(inputs)
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 32, dropout=0.1)(x, x))
        inner = layers.Dense(128)(layers.Dense(512, "gelu")(x))
        x = layers.LayerNormalization()(x + layers.Dropout(0.1)(inner))
    outputs = layers.Dense(10)(layers.GlobalAveragePooling1D()(x))
    return inputs, outputs, keras.optimizers.SGD(0.05, momentum=0.9), 48


def _recurrent(keras: Any) -> _Network:
    layers = keras.layers
    inputs = keras.Input((48,), dtype="int32")
    x = layers.Embedding(1000, 64, mask_zero=True)(inputs)
    x = layers.LSTM(96)(layers.LSTM(96, return_sequences=True)(x))
    return inputs, layers.Dense(10)(x), keras.optimizers.Adam(1e-3), 64


def _dense(keras: Any) -> _Network:
    layers = keras.layers
    inputs = x = keras.Input((1024,))
    for _ in range(3):
        x = layers.Dropout(0.2)(layers.Dense(1024, "relu")(x))
    return inputs, layers.Dense(10)(x), keras.optimizers.AdamW(1e-3), 512


NETWORKS: dict[str, Callable[[Any], _Network]] = {
    "convolutions": _convolutions,
    "transformer": _transformer,
    "recurrent": _recurrent,
    "dense": _dense,
}
