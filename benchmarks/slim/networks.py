"""Networks of seven kinds at small inputs, each compiled with Adam."""

from typing import Any

import models

BATCH = 16
NAMES = ("ViT", "BiLSTM", "U-Net", "MobileNetV2", "EfficientNetV2B0", "ResNet50", "VGG16")


def bilstm(words: int = 5000, length: int = 64) -> Any:
    """A bidirectional LSTM over words."""
    import keras

    layers = keras.layers
    inputs = keras.Input((length,), dtype="int32")
    x = layers.Embedding(words, 64)(inputs)
    x = layers.Bidirectional(layers.LSTM(64, return_sequences=True))(x)
    x = layers.Bidirectional(layers.LSTM(64))(x)
    x = layers.Dense(128, activation="relu")(x)
    return keras.Model(inputs, layers.Dense(10, activation="softmax")(x))


def build(name: str) -> Any:
    """Builds a network by name."""
    import keras

    keras.utils.set_random_seed(0)
    size = {"input_shape": (64, 64, 3), "weights": None, "classes": 10}
    made = {
        "ViT": lambda: models.vit(64, width=64, depth=4),
        "BiLSTM": bilstm,
        "U-Net": lambda: models.unet(64),
        "MobileNetV2": lambda: keras.applications.MobileNetV2(**size),
        "EfficientNetV2B0": lambda: keras.applications.EfficientNetV2B0(**size),
        "ResNet50": lambda: keras.applications.ResNet50(**size),
        "VGG16": lambda: keras.applications.VGG16(**size),
        "tiny": models.tiny,
    }[name]()
    compile_network(name, made)
    return made


def compile_network(name: str, model: Any) -> None:
    """Compiles a network, or a variant of it, with a new optimizer."""
    loss = "binary_crossentropy" if name == "U-Net" else "sparse_categorical_crossentropy"
    model.compile("adam", loss, jit_compile=False)


def data(model: Any, count: int) -> tuple[Any, Any]:
    """Makes seeded random inputs and targets for a network, or a variant of one."""
    import numpy as np

    if model.inputs[0].dtype == "int32":
        random = np.random.default_rng(0)
        return random.integers(0, 5000, (count, *model.input_shape[1:])), random.integers(0, 10, (count,))
    return models.data(model, count)
