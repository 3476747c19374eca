"""The cases of the estimate's benchmark: families of models, sizes, optimizers, batches, XLA, mixed precision."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from machine import SMOKE
from models import tiny

SPARSE = "sparse_categorical_crossentropy"


@dataclass(frozen=True)
class Case:
    """One recording, asked about one or more batch sizes, all at least four times what was recorded.

    Attributes:
        name: Family and input size.
        build: Makes the model, uncompiled.
        optimizer: A Keras name, or a function that makes one.
        batches: The batch sizes predicted and measured.
        loss: A Keras loss, or one for each output.
        jit: Whether XLA compiles the step.
        policy: Keras's dtype policy.
    """

    name: str
    build: Callable[[], Any]
    optimizer: Any
    batches: tuple[int, ...]
    loss: Any = SPARSE
    jit: bool = False
    policy: str = "float32"

    def model(self) -> Any:
        """Builds and compiles the model."""
        import keras

        keras.config.set_dtype_policy(self.policy)
        model = self.build()
        optimizer = self.optimizer() if callable(self.optimizer) else self.optimizer
        model.compile(optimizer, self.loss, jit_compile=self.jit)
        return model

    @property
    def label(self) -> str:
        """What stands in the first column of the table."""
        name = self.optimizer if isinstance(self.optimizer, str) else self.optimizer.__name__
        return " ".join(
            [self.name, name, *(["XLA"] if self.jit else []), *self.policy.split("float32")[0].split()]
        )


def application(name: str, size: int) -> Callable[[], Any]:
    """A model of keras.applications with ten classes and random weights."""

    def build() -> Any:
        import keras

        return getattr(keras.applications, name)(weights=None, input_shape=(size, size, 3), classes=10)

    return build


def cnn(size: int = 64, width: int = 32) -> Any:
    """A plain convolutional network with dropout."""
    import keras
    from keras import layers

    stack = [keras.Input((size, size, 3))]
    for filters in (width, 2 * width, 4 * width):
        stack += [layers.Conv2D(filters, 3, padding="same", activation="relu"), layers.MaxPooling2D()]
    return keras.Sequential(
        [
            *stack,
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(10),
        ]
    )


def mlp(width: int = 1024) -> Any:
    """A perceptron whose weights outweigh its activations."""
    import keras
    from keras import layers

    hidden = [layers.Dense(width, activation="relu") for _ in range(4)]
    return keras.Sequential([keras.Input((784,)), *hidden, layers.Dense(10)])


def unet(size: int = 128, width: int = 16) -> Any:
    """A U-Net with four long skips."""
    import keras
    from keras import layers

    def block(x: Any, filters: int) -> Any:
        for _ in range(2):
            x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(filters, 3, padding="same")(x)))
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
    return keras.Model(inputs, layers.Conv2D(2, 1, activation="softmax")(x))


def vit(size: int = 64, patch: int = 8, width: int = 128, depth: int = 4) -> Any:
    """A small vision transformer."""
    import keras
    from keras import layers

    inputs = keras.Input((size, size, 3))
    x = layers.Reshape((-1, width))(layers.Conv2D(width, patch, strides=patch)(inputs))
    for _ in range(depth):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(4, width // 4, dropout=0.1)(y, y)])
        y = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(width)(y)])
    return keras.Model(inputs, layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling1D()(x)))


def language_model(length: int = 64, words: int = 2000, width: int = 96) -> Any:
    """A transformer over tokens that predicts a word at every place."""
    import keras
    from keras import layers

    inputs = keras.Input((length,), dtype="int32")
    x = layers.Embedding(words, width)(inputs)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(4, width // 4)(y, y, use_causal_mask=True)])
        x = layers.Add()([x, layers.Dense(width)(layers.Dense(4 * width, activation="relu")(x))])
    return keras.Model(inputs, layers.Dense(words, activation="softmax")(x))


def recurrent(cell: str, *, both_ways: bool, length: int = 40, width: int = 96) -> Callable[[], Any]:
    """An embedding and two recurrent layers."""

    def build() -> Any:
        import keras
        from keras import layers

        make = getattr(layers, cell)
        first = make(width, return_sequences=True)
        return keras.Sequential(
            [
                keras.Input((length,), dtype="int32"),
                layers.Embedding(5000, width),
                layers.Bidirectional(first) if both_ways else first,
                make(width),
                layers.Dense(10, activation="softmax"),
            ]
        )

    return build


def autoencoder(size: int = 64) -> Any:
    """A convolutional autoencoder."""
    import keras
    from keras import layers

    return keras.Sequential(
        [
            keras.Input((size, size, 3)),
            *(layers.Conv2D(f, 3, strides=2, padding="same", activation="relu") for f in (32, 64, 128)),
            *(
                layers.Conv2DTranspose(f, 3, strides=2, padding="same", activation="relu")
                for f in (64, 32, 16)
            ),
            layers.Conv2D(3, 3, padding="same"),
        ]
    )


def two_in_two_out() -> Any:
    """Two inputs, two outputs, a nested model used twice."""
    import keras
    from keras import layers

    tower = keras.Sequential(
        [
            keras.Input((48, 48, 3)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(32, 3, activation="relu"),
            layers.GlobalMaxPooling2D(),
        ]
    )
    left, right = keras.Input((48, 48, 3)), keras.Input((48, 48, 3))
    both = layers.Concatenate()([tower(left), tower(right)])
    return keras.Model([left, right], [layers.Dense(10)(both), layers.Dense(1)(both)])


def frozen(size: int = 96) -> Any:
    """A frozen backbone under a new head."""
    import keras
    from keras import layers

    backbone = keras.applications.MobileNetV2(weights=None, input_shape=(size, size, 3), include_top=False)
    backbone.trainable = False
    inputs = keras.Input((size, size, 3))
    x = layers.GlobalAveragePooling2D()(backbone(inputs))
    return keras.Model(inputs, layers.Dense(10)(layers.Dense(256, activation="relu")(x)))


def signal(length: int = 512) -> Any:
    """A one-dimensional convolutional network over a signal."""
    import keras
    from keras import layers

    stack = [layers.Conv1D(64, 5, padding="same", activation="relu") for _ in range(4)]
    return keras.Sequential(
        [
            keras.Input((length, 8)),
            *stack,
            layers.GlobalAveragePooling1D(),
            layers.Dense(5, activation="softmax"),
        ]
    )


def branching(size: int = 64) -> Any:
    """Blocks of four parallel branches, as in Inception."""
    import keras
    from keras import layers

    inputs = x = keras.Input((size, size, 3))
    for filters in (16, 32, 64):
        branches = [layers.Conv2D(filters, 1, activation="relu")(x) for _ in range(3)]
        branches[1] = layers.Conv2D(filters, 3, padding="same", activation="relu")(branches[1])
        branches[2] = layers.Conv2D(filters, 5, padding="same", activation="relu")(branches[2])
        pooled = layers.AveragePooling2D(3, 1, padding="same")(x)
        branches.append(layers.Conv2D(filters, 1, activation="relu")(pooled))
        x = layers.MaxPooling2D()(layers.Concatenate()(branches))
    return keras.Model(inputs, layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling2D()(x)))


def separable(size: int = 64) -> Any:
    """Separable convolutions with skips."""
    import keras
    from keras import layers

    inputs = x = keras.Input((size, size, 3))
    for filters in (32, 64, 128):
        y = layers.BatchNormalization()(layers.SeparableConv2D(filters, 3, padding="same")(x))
        x = layers.MaxPooling2D()(layers.Add()([layers.Activation("swish")(y), layers.Conv2D(filters, 1)(x)]))
    return keras.Model(inputs, layers.Dense(10, activation="softmax")(layers.Flatten()(x)))


def clipped() -> Any:
    """Adam with the gradients' global norm clipped."""
    import keras

    return keras.optimizers.Adam(global_clipnorm=1.0)


CASES = (
    Case("CNN 64", cnn, "adam", (32, 128)),
    Case("CNN 96", lambda: cnn(96), clipped, (64,)),
    Case("MLP 1024", mlp, "adagrad", (64, 512)),
    Case("autoencoder 64", autoencoder, "nadam", (32, 96), "mse"),
    Case("U-Net 128", unet, "adam", (32,)),
    Case("U-Net 64", lambda: unet(64), "sgd", (32, 128)),
    Case("ViT 64", vit, "adamw", (32, 96)),
    Case("language model 64", language_model, "adam", (32, 64)),
    Case("BiLSTM 40", recurrent("LSTM", both_ways=True), "adam", (32, 128)),
    Case("GRU 40", recurrent("GRU", both_ways=False), "rmsprop", (64,)),
    Case("two inputs 48", two_in_two_out, "adam", (32, 64), [SPARSE, "mse"]),
    Case("frozen MobileNetV2 96", frozen, "adam", (64,)),
    Case("MobileNetV2 96", application("MobileNetV2", 96), "adam", (32, 64)),
    Case("ResNet50 64", application("ResNet50", 64), "adam", (32, 64)),
    Case("VGG16 64", application("VGG16", 64), "sgd", (32,)),
    Case("EfficientNetB0 64", application("EfficientNetB0", 64), "lion", (32,)),
    Case("DenseNet121 64", application("DenseNet121", 64), "rmsprop", (32,)),
    Case("Conv1D 512", signal, "adam", (64,)),
    Case("Inception-like 64", branching, "adam", (64,)),
    Case("separable 64", separable, "adafactor", (64,)),
    Case("CNN 64", cnn, "adam", (64,), policy="mixed_bfloat16"),
    Case("U-Net 64", lambda: unet(64), "adam", (32,), policy="mixed_float16"),
    Case("ViT 64", vit, "adam", (32,), policy="mixed_bfloat16"),
    Case("BiLSTM 40", recurrent("LSTM", both_ways=True), "adam", (64,), policy="mixed_float16"),
    Case("CNN 64", cnn, "adam", (32, 128), jit=True),
    Case("MLP 1024", mlp, "sgd", (256,), jit=True),
    Case("autoencoder 64", autoencoder, "adam", (64,), "mse", jit=True),
    Case("ViT 64", vit, "adam", (32,), jit=True),
    Case("U-Net 64", lambda: unet(64), "adam", (32,), jit=True),
)
if SMOKE:
    CASES = [Case("tiny", tiny, "adam", (8,))]
