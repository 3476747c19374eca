"""The models of the benchmarks: name, how to build it, and the input it takes."""

from collections.abc import Callable
from typing import Any


def resnet50(size: int = 128) -> Any:
    """ResNet50 with ten classes."""
    import keras

    return keras.applications.ResNet50(weights=None, input_shape=(size, size, 3), classes=10)


def mobilenet_v2(size: int = 128) -> Any:
    """MobileNetV2 with ten classes."""
    import keras

    return keras.applications.MobileNetV2(weights=None, input_shape=(size, size, 3), classes=10)


def vgg19(size: int = 96) -> Any:
    """VGG19 with ten classes: no BatchNormalization, and most weights in its dense layers."""
    import keras

    return keras.applications.VGG19(weights=None, input_shape=(size, size, 3), classes=10)


def unet(size: int = 128) -> Any:
    """A U-Net with BatchNormalization and four levels of skips."""
    import keras

    layers = keras.layers

    def block(x: Any, filters: int) -> Any:
        for _ in range(2):
            x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
        return x

    inputs = keras.Input((size, size, 3))
    x, skips = inputs, []
    for filters in (16, 32, 64, 128):
        x = block(x, filters)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = block(x, 256)
    for filters in (128, 64, 32, 16):
        x = layers.Concatenate()([layers.UpSampling2D()(x), skips.pop()])
        x = block(x, filters)
    return keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid")(x))


def vit(size: int = 128, patch: int = 8, width: int = 128, depth: int = 6) -> Any:
    """A small vision transformer with LayerNormalization and attention dropout."""
    import keras

    layers = keras.layers
    inputs = keras.Input((size, size, 3))
    x = layers.Conv2D(width, patch, strides=patch)(inputs)
    x = layers.Reshape(((size // patch) ** 2, width))(x)
    for _ in range(depth):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(4, width // 4, dropout=0.1)(y, y)])
        y = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(width)(y)])
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return keras.Model(inputs, layers.Dense(10, activation="softmax")(x))


def tiny(size: int = 16) -> Any:
    """A few layers, for smoke runs."""
    import keras

    layers = keras.layers
    inputs = keras.Input((size, size, 3))
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(8, 3)(inputs)))
    x = layers.GlobalAveragePooling2D()(layers.Conv2D(8, 3, activation="relu")(x))
    return keras.Model(inputs, layers.Dense(10, activation="softmax")(x))


MODELS: dict[str, Callable[[], Any]] = {
    "ResNet50": resnet50,
    "MobileNetV2": mobilenet_v2,
    "VGG19": vgg19,
    "U-Net": unet,
    "ViT": vit,
    "tiny": tiny,
}


def compiled(name: str) -> Any:
    """Builds a model by name and compiles it with Adam and a loss that suits its output."""
    model = MODELS[name]()
    loss = "binary_crossentropy" if name == "U-Net" else "sparse_categorical_crossentropy"
    model.compile("adam", loss, jit_compile=False)
    return model


def data(model: Any, count: int) -> tuple[Any, Any]:
    """Makes seeded random inputs and targets for a model of this file."""
    import numpy as np

    random = np.random.default_rng(0)
    x = random.normal(size=(count, *model.input_shape[1:])).astype("float32")
    if len(model.output_shape) == 4:
        return x, random.integers(0, 2, (count, *model.output_shape[1:])).astype("float32")
    return x, random.integers(0, 10, (count,))
