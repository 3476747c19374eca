"""The networks of the zoo: keras.applications at small inputs, and small networks of other kinds of layers."""

from collections.abc import Callable
from typing import Any

BATCH = 16
CLASSES = 10
# What some of them want at least; the others take 64.
_LEAST_SIZE = {"InceptionV3": 75, "InceptionResNetV2": 75, "Xception": 71}
_SIZE = 64


def names() -> list[str]:
    """Lists all networks, those of keras.applications first."""
    import keras

    networks = [name for name in dir(keras.applications) if name[0].isupper()]
    return [*networks, *OTHERS]


def build(name: str) -> Any:
    """Builds a compiled network."""
    import keras

    keras.utils.set_random_seed(1)
    if name in OTHERS:
        model = OTHERS[name]()
    else:
        size = _LEAST_SIZE.get(name, _SIZE)
        make = getattr(keras.applications, name)
        model = make(weights=None, input_shape=(size, size, 3), classes=CLASSES)
    model.compile(
        keras.optimizers.SGD(1e-3, momentum=0.9), "sparse_categorical_crossentropy", jit_compile=False
    )
    return model


def data(model: Any, samples: int) -> tuple[Any, Any]:
    """Makes arrays for a network."""
    import numpy as np

    random = np.random.default_rng(1)
    shape = (samples, *model.input_shape[1:])
    whole = "int" in str(model.inputs[0].dtype)
    x: Any = random.integers(1, 2000, shape).astype("int32") if whole else random.random(shape, "float32")
    return x, random.integers(0, CLASSES, samples)


def _end(inputs: Any, x: Any) -> Any:
    import keras

    return keras.Model(inputs, keras.layers.Dense(CLASSES, activation="softmax")(x))


def _conv3d() -> Any:
    from keras import Input, layers

    x = inputs = Input((16, 32, 32, 1))
    for filters in (16, 32, 64):
        x = layers.Conv3D(filters, 3, padding="same")(x)
        x = layers.MaxPooling3D()(layers.Activation("relu")(layers.BatchNormalization()(x)))
    return _end(inputs, layers.GlobalAveragePooling3D()(x))


def _text() -> Any:
    from keras import Input, layers

    inputs = Input((80,), dtype="int32")
    x = layers.Embedding(20000, 128, mask_zero=True)(inputs)
    x = layers.Bidirectional(layers.LSTM(96, return_sequences=True))(x)
    return _end(inputs, layers.LSTM(64)(x))


def _transformer() -> Any:
    from keras import Input, layers

    inputs = Input((128,), dtype="int32")
    x = layers.Embedding(2000, 128)(inputs)
    for _ in range(4):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 32, dropout=0.1)(x, x))
        hidden = layers.Dropout(0.1)(layers.Dense(512, activation="gelu")(x))
        x = layers.LayerNormalization()(x + layers.Dense(128)(hidden))
    return _end(inputs, layers.GlobalAveragePooling1D()(x))


def _autoencoder() -> Any:
    from keras import Input, layers

    x = inputs = Input((64, 64, 3))
    for filters in (32, 64, 128):
        x = layers.Conv2D(filters, 3, strides=2, padding="same", activation="relu")(x)
    for filters in (128, 64, 32):
        x = layers.Conv2DTranspose(filters, 3, strides=2, padding="same", activation="relu")(x)
    return _end(inputs, layers.GlobalAveragePooling2D()(x))


def _series() -> Any:
    from keras import Input, layers

    x = inputs = Input((256, 8))
    for filters in (64, 64, 128):
        x = layers.SeparableConv1D(filters, 5, padding="same", activation="relu")(x)
        x = layers.SpatialDropout1D(0.2)(layers.LayerNormalization()(layers.AveragePooling1D(2)(x)))
    return _end(inputs, layers.GRU(64)(x))


def _dense() -> Any:
    from keras import Input, layers

    x = inputs = Input((256,))
    for _ in range(4):
        x = layers.Dropout(0.3)(layers.BatchNormalization()(layers.Dense(1024, activation="relu")(x)))
    return _end(inputs, x)


OTHERS: dict[str, Callable[[], Any]] = {
    "conv3d": _conv3d,
    "text": _text,
    "transformer": _transformer,
    "autoencoder": _autoencoder,
    "series": _series,
    "dense": _dense,
}
