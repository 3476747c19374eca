"""The six trainings of the GPU compiler's benchmark, with the batch a user would choose."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

TARGETS = ("Tesla T4", "A100 40GB", "RTX 4090")


@dataclass(frozen=True)
class Case:
    """A training: how to build the network, its batch, and whether its exact lever is micro-batches.

    Networks with BatchNormalization are rematerialised instead: for them micro-batches are not exact.
    """

    name: str
    build: Callable[[], Any]
    batch: int
    micro_batches: bool = False
    loss: str = "sparse_categorical_crossentropy"

    def model(self) -> Any:
        """Builds the network and compiles it with Adam."""
        model = self.build()
        model.compile("adam", self.loss)
        return model


def application(name: str) -> Callable[[], Any]:
    """A network of keras.applications for 224x224 images and 1000 classes."""

    def build() -> Any:
        import keras

        return getattr(keras.applications, name)(weights=None, input_shape=(224, 224, 3))

    return build


def vit_b(size: int = 224, patch: int = 16, width: int = 768, depth: int = 12, heads: int = 12) -> Any:
    """A vision transformer of the size of ViT-B/16."""
    import keras
    from keras import layers

    inputs = keras.Input((size, size, 3))
    x = layers.Reshape((-1, width))(layers.Conv2D(width, patch, strides=patch)(inputs))
    x = layers.Dropout(0.1)(x)
    for _ in range(depth):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(heads, width // heads, dropout=0.1)(y, y)])
        y = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dropout(0.1)(layers.Dense(width)(y))])
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return keras.Model(inputs, layers.Dense(1000, activation="softmax")(x))


def unet(size: int = 256, width: int = 64) -> Any:
    """A U-Net of the usual width, with BatchNormalization."""
    import keras
    from keras import layers

    def block(x: Any, filters: int) -> Any:
        for _ in range(2):
            x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
        return x

    inputs = x = keras.Input((size, size, 3))
    skips = []
    for level in range(4):
        x = block(x, width * 2**level)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = block(x, width * 16)
    for level in reversed(range(4)):
        x = layers.Conv2DTranspose(width * 2**level, 2, strides=2)(x)
        x = block(layers.Concatenate()([x, skips[level]]), width * 2**level)
    return keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid")(x))


def lstm(length: int = 256, words: int = 20_000, width: int = 512) -> Any:
    """Two LSTM layers over tokens, without cuDNN, so that XLA compiles them."""
    import keras
    from keras import layers

    return keras.Sequential(
        [
            keras.Input((length,), dtype="int32"),
            layers.Embedding(words, width),
            layers.LSTM(width, return_sequences=True, use_cudnn=False),
            layers.LSTM(width, use_cudnn=False),
            layers.Dense(10, activation="softmax"),
        ]
    )


CASES = (
    Case("ResNet50 224", application("ResNet50"), 64),
    Case("MobileNetV2 224", application("MobileNetV2"), 128),
    Case("U-Net 256", unet, 16, loss="binary_crossentropy"),
    Case("ViT-B/16 224", vit_b, 32, micro_batches=True),
    Case("LSTM 2x512, length 256", lstm, 128, micro_batches=True),
    Case("EfficientNetV2-S 224", application("EfficientNetV2S"), 64),
)
