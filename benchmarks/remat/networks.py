"""The four networks of the rematerialisation benchmark."""

from typing import Any

from machine import SMOKE

BATCHES = {"tiny": 4} if SMOKE else {"ResNet50": 32, "MobileNetV2": 32, "ViT": 64, "U-Net": 16}


def build(name: str) -> Any:
    """Returns a Keras model for 128x128 images."""
    import keras

    options = {"weights": None, "input_shape": (128, 128, 3), "classes": 10, "classifier_activation": None}
    if name == "tiny":
        return tiny()
    if name == "ResNet50":
        return keras.applications.ResNet50(**options)
    if name == "MobileNetV2":
        return keras.applications.MobileNetV2(**options)
    return vit() if name == "ViT" else u_net()


def tiny() -> Any:
    """A few layers, for smoke runs."""
    import keras
    from keras import layers

    x = image = keras.Input((128, 128, 3))
    for _ in range(6):
        x = layers.Activation("relu")(layers.BatchNormalization()(layers.Conv2D(4, 3)(x)))
    return keras.Model(image, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def u_net() -> Any:
    """Four levels, 32 to 512 channels, with batch normalisation."""
    import keras
    from keras import layers

    def block(x: Any, width: int) -> Any:
        for _ in range(2):
            x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
            x = layers.Activation("relu")(layers.BatchNormalization()(x))
        return x

    x = image = keras.Input((128, 128, 3))
    skips = []
    for level in range(4):
        x = block(x, 32 * 2**level)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = block(x, 512)
    for level in reversed(range(4)):
        x = layers.Conv2DTranspose(32 * 2**level, 2, strides=2)(x)
        x = block(layers.concatenate([skips[level], x]), 32 * 2**level)
    return keras.Model(image, layers.Conv2D(5, 1)(x))


def vit() -> Any:
    """Eight blocks of 3 heads and width 192 over 64 patches, with dropout."""
    import keras
    from keras import layers

    image = keras.Input((128, 128, 3))
    x = layers.Reshape((64, 192))(layers.Conv2D(192, 16, strides=16)(image))
    x = x + layers.Embedding(64, 192)(keras.ops.arange(64))
    for _ in range(8):
        inner = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(3, 64, dropout=0.1)(inner, inner)
        inner = layers.Dense(768, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dropout(0.1)(layers.Dense(192)(layers.Dropout(0.1)(inner)))
    return keras.Model(
        image, layers.Dense(10)(layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x)))
    )
