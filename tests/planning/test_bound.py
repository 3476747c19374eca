import math

import keras
import pytest

from memfit.planning.bound import upper_bound
from memfit.planning.fingerprint import fingerprint
from prepared import in_arena

layers = keras.layers


def _compiled(model: keras.Model, optimizer: str = "adam") -> keras.Model:
    model.compile(optimizer, "mse")
    return model


def _functional() -> keras.Model:
    inputs = keras.Input((16, 16, 3))
    block = keras.Sequential([layers.Conv2D(8, 3), layers.BatchNormalization(), layers.ReLU()])
    return _compiled(keras.Model(inputs, layers.Dense(1)(layers.Flatten()(block(inputs)))))


def test_plain_models_are_bounded_nested_and_sequential_ones_too() -> None:
    bound = upper_bound(_functional(), 4)
    # Of a sample: the input 768 twice, 3 x 14x14x8, flattened once more, 1, 6 around the loss; four bytes, twice.
    outputs = 2 * 4 * (2 * 768 + 4 * 14 * 14 * 8 + 1 + 6)
    assert bound is not None
    assert bound > 4 * outputs
    larger = upper_bound(_functional(), 8)
    assert larger is not None
    assert larger - bound == 4 * outputs
    sequential = _compiled(keras.Sequential([keras.Input((8,)), layers.Dense(4), layers.Dense(1)]))
    assert upper_bound(sequential, 4) is not None


def test_the_optimizers_state_counts() -> None:
    model = _functional()
    adam = upper_bound(model, 1)
    model.optimizer.build(model.trainable_variables)
    built = upper_bound(model, 1)
    assert adam is not None
    assert built is not None
    assert 0 < built <= adam


@pytest.mark.parametrize(
    "layer", [layers.LSTM(4), layers.Bidirectional(layers.GRU(4)), layers.MultiHeadAttention(2, 4)]
)
def test_what_layers_hold_inside_counts(layer: keras.Layer) -> None:
    inputs = keras.Input((600, 4))
    outputs = layer(inputs, inputs) if isinstance(layer, layers.MultiHeadAttention) else layer(inputs)
    model = _compiled(keras.Model(inputs, outputs))
    one, two = upper_bound(model, 1), upper_bound(model, 2)
    assert one is not None
    assert two is not None
    visible = 4 * (600 * 4 + math.prod(outputs.shape[1:]))
    assert two - one > 5 * visible


def _peak_of_transposed_convolutions() -> tuple[int, int]:
    """Peak of some steps of a small network whose kernels take far more than its layers' outputs; and its bound."""
    import numpy as np
    import tensorflow as tf

    wide = {"activation": "relu", "padding": "same"}
    model = keras.Sequential([keras.Input((28, 28, 1)), layers.Conv2D(32, 3, **wide), layers.MaxPooling2D()])
    model.add(layers.Conv2DTranspose(32, 3, strides=2, **wide))
    model.add(layers.Conv2D(1, 3, **wide))
    model.compile("sgd", "mse", jit_compile=False)
    images = np.ones((32, 28, 28, 1), "float32")
    for _ in range(5):
        model.train_on_batch(images, images)
    bound = upper_bound(model, 32)
    assert bound is not None
    return int(tf.config.experimental.get_memory_info("CPU:0")["peak"]), int(bound)


def test_what_kernels_of_convolutions_unfold_counts() -> None:
    peak, bound = in_arena(_peak_of_transposed_convolutions, memory="1GiB")
    assert 30 * 2**20 < peak < bound
    assert not upper_bound(_compiled(keras.Sequential([keras.Input((8,)), layers.Dense(4)])), 4) > 2**20


def _peak_of_one_layer(dtype: str, loss: str) -> tuple[int, int]:
    """Peak of some steps of a network that is hardly more than its loss; and its bound."""
    import numpy as np
    import tensorflow as tf

    model = keras.Sequential([keras.Input((64,), dtype=dtype), layers.Dense(64, dtype=dtype)])
    model.compile("sgd", loss, jit_compile=False)
    x, y = np.ones((8192, 64), dtype), np.ones((8192, 64), dtype)
    for _ in range(3):
        model.train_on_batch(x, y)
    bound = upper_bound(model, 8192)
    assert bound is not None
    return int(tf.config.experimental.get_memory_info("CPU:0")["peak"]), int(bound)


@pytest.mark.parametrize(
    ("dtype", "loss"), [("float32", "mse"), ("float64", "mse"), ("float32", "categorical_crossentropy")]
)
def test_the_batch_and_its_loss_count(dtype: str, loss: str) -> None:
    peak, bound = in_arena(_peak_of_one_layer, dtype, loss, memory="1GiB")
    assert peak < bound < 4 * peak


def test_layers_that_nobody_knows_are_not_bounded() -> None:
    inputs = keras.Input((8,))
    model = _compiled(keras.Model(inputs, layers.Lambda(lambda x: x * 2)(inputs)))
    assert upper_bound(model, 4) is None


def test_unknown_sizes_and_subclassed_models_are_not_bounded() -> None:
    inputs = keras.Input((None, None, 3))
    outputs = layers.GlobalAveragePooling2D()(layers.Conv2D(4, 3)(inputs))
    assert upper_bound(_compiled(keras.Model(inputs, outputs)), 4) is None

    class Own(keras.Model):
        def call(self, x: object) -> object:
            return x

    assert upper_bound(_compiled(Own()), 4) is None


def test_steps_that_run_eagerly_are_not_bounded() -> None:
    model = _functional()
    model.run_eagerly = True
    assert upper_bound(model, 4) is None


def test_a_fingerprint_is_of_the_network_not_of_its_names_or_weights() -> None:
    assert fingerprint(_functional()) == fingerprint(_functional())
    frozen = _functional()
    frozen.layers[1].trainable = False
    other = _compiled(_functional(), "sgd")
    assert len({fingerprint(_functional()), fingerprint(frozen), fingerprint(other)}) == 3
