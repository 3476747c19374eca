"""Prediction and evaluation in tiles are those of the whole image, or refused in one sentence."""

import keras
import numpy as np
import pytest

import memfit
import prepared
from memfit import InvalidInput
from memfit.training.tiles.grid import Layout

L = keras.layers


pytestmark = pytest.mark.usefixtures("in_float64")


def _unet(image: tuple[int, ...]) -> keras.Model:
    """A U-Net whose input says its size, which may be odd: what is upsampled is cropped to its skip."""
    x = inputs = keras.Input((*image, 1))
    skips = []
    for filters in (3, 4):
        x = L.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = L.BatchNormalization(moving_mean_initializer="ones")(x)
        x = L.ReLU()(x)
        skips.append(x)
        x = L.MaxPooling2D(2, padding="same")(x)
    x = L.Conv2D(5, 3, padding="same", activation="gelu")(x)
    for skip in reversed(skips):
        x = L.UpSampling2D()(x)
        over = [x.shape[axis] - skip.shape[axis] for axis in (1, 2)]
        x = L.Cropping2D(((0, over[0]), (0, over[1])))(x)
        x = L.Concatenate()([x, skip])
        x = L.Conv2D(3, 3, padding="same")(x)
    return keras.Model(inputs, L.Conv2D(1, 1, activation="sigmoid")(x))


def _strided(image: tuple[int, ...]) -> keras.Model:
    """Strides, dilation, transposed and depthwise convolutions, a bilinear skip and two outputs of other scales."""
    x = inputs = keras.Input((None, None, 2))
    first = x = L.Conv2D(3, 4, strides=2, padding="same")(x)
    x = L.DepthwiseConv2D(3, padding="same", dilation_rate=2)(x)
    x = L.AveragePooling2D(3, 2, padding="same")(x)
    coarse = x = L.SeparableConv2D(4, 3, padding="same")(x)
    x = L.Conv2DTranspose(3, 3, strides=2, padding="same")(x)
    y = L.UpSampling2D(2, interpolation="bilinear")(coarse)
    y = L.Dense(3)(y)
    over = [(size + 1) // 2 % 2 for size in image]
    x, y = (L.Cropping2D(((0, over[0]), (0, over[1])))(each) for each in (x, y))
    return keras.Model(inputs, {"fine": x * 2.0 + L.LayerNormalization()(y) + first, "coarse": coarse})


def _valid(image: tuple[int, ...]) -> keras.Model:
    inner = keras.Sequential([keras.Input((None, None, 3)), L.ZeroPadding2D((2, 1)), L.Conv2D(3, 3)])
    x = inputs = keras.Input((None, None, 1))
    x = L.Conv2D(3, 5)(x)
    x = L.MaxPooling2D(3, 1)(x)
    x = inner(inner(x))
    return keras.Model(inputs, L.PReLU(shared_axes=[1, 2])(x))


def _sequence(image: tuple[int, ...]) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((None, 2)),
            L.Conv1D(3, 3, padding="causal", dilation_rate=2),
            L.Conv1D(3, 4, strides=3, padding="same"),
            L.Conv1DTranspose(3, 5, strides=2),
            L.AveragePooling1D(3, 2, padding="same"),
            L.Cropping1D((2, 1)),
            L.UpSampling1D(3),
            L.Softmax(),
        ]
    )


def _volume(image: tuple[int, ...]) -> keras.Model:
    x = inputs = keras.Input((*image, 1))
    skip = x = L.Conv3D(2, 3, padding="same")(x)
    x = L.Conv3D(2, 3, strides=2, padding="same", activation="relu")(
        x
    )  # TensorFlow pools no volumes of float64
    x = L.Conv3DTranspose(2, 2, strides=2)(x)
    return keras.Model(inputs, L.Conv3D(1, 3, padding="same")(L.Add()([x, skip])))


def _predict_stock_and_in_tiles(
    model: keras.Model, image: tuple[int, ...], tiles: object
) -> tuple[list, list]:
    x = np.random.default_rng(0).normal(size=(2, *image, model.inputs[0].shape[-1]))
    stock, tiled = model.predict(x, verbose=0), memfit.predict(model, x, tiles=tiles, verbose=0)
    keras.tree.assert_same_structure(stock, tiled)
    return keras.tree.flatten(stock), keras.tree.flatten(tiled)


@pytest.mark.parametrize(
    ("build", "image", "tiles"),
    [
        (_unet, (64, 72), 36),
        (_unet, (61, 74), (34, 40)),
        (_strided, (64, 51), 36),
        (_strided, (66, 57), (38, 57)),
        (_valid, (33, 40), 19),
        (_sequence, (90,), 40),
        (_sequence, (91,), 40),
        (_volume, (20, 16, 24), 14),
    ],
)
def test_what_tiles_predict_is_what_stock_keras_predicts(build, image, tiles) -> None:
    model = build(image)
    assert Layout(model, image).lay(tiles if isinstance(tiles, tuple) else (tiles,) * len(image)).count > 1
    for stock, tiled in zip(*_predict_stock_and_in_tiles(model, image, tiles), strict=True):
        assert stock.dtype == tiled.dtype
        np.testing.assert_allclose(tiled, stock, rtol=0, atol=1e-12)


def test_loss_and_metrics_in_tiles_are_stock_keras_s_also_where_probabilities_are_saturated() -> None:
    model = _unet((48, 48))
    model.layers[-1].bias.assign([80.0])  # where a loss of probabilities, not of logits, would be cut off
    x = np.random.default_rng(0).normal(size=(3, 48, 48, 1))
    y = (x > 0).astype("float64")
    model.compile(loss="binary_crossentropy", metrics=["mae"])
    stock = model.evaluate(x, y, batch_size=2, verbose=0, return_dict=True)
    tiled = memfit.evaluate(model, x, y, batch_size=2, tiles=36, verbose=0, return_dict=True)
    assert tiled == pytest.approx(stock, rel=1e-12)
    assert stock["loss"] > 20


def _with(layer: keras.layers.Layer) -> keras.Model:
    x = inputs = keras.Input((32, 32, 4))
    return keras.Model(inputs, layer(L.Conv2D(4, 3)(x)))


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        (
            L.GlobalAveragePooling2D(name="pooled"),
            "'pooled' (GlobalAveragePooling2D) looks at the whole image",
        ),
        (L.Flatten(name="flat"), "'flat' (Flatten) looks at the whole image"),
        (L.GroupNormalization(2, name="groups"), "'groups' (GroupNormalization) looks at the whole image"),
        (
            L.LayerNormalization(axis=(1, 2), name="norm"),
            "'norm' (LayerNormalization) looks at the whole image",
        ),
        (L.Softmax(axis=1, name="soft"), "'soft' (Softmax) looks at the whole image"),
        (L.Lambda(lambda x: x, name="mine"), "not known how far 'mine' (Lambda) looks"),
        (L.UpSampling2D(3, interpolation="bilinear", name="up"), "'up'"),
    ],
)
def test_a_layer_that_looks_at_the_whole_image_is_refused_by_its_name(layer, says) -> None:
    with pytest.raises(InvalidInput) as refusal:
        memfit.predict(_with(layer), np.zeros((1, 32, 32, 4)), tiles=16)
    assert says in str(refusal.value)


def test_tiles_that_make_no_sense_are_refused_in_one_sentence() -> None:
    model, x = _unet((64, 64)), np.zeros((1, 64, 64, 1))
    with pytest.raises(InvalidInput, match=r"has to be larger than its halo, which is .* positions"):
        memfit.predict(model, x, tiles=12)
    with pytest.raises(InvalidInput, match='`tiles` is "auto", the side of a tile, or 2 sides'):
        memfit.predict(model, x, tiles=(32, 32, 32))
    with pytest.raises(InvalidInput, match="`tiles` or `micro_batch`, not both"):
        memfit.predict(model, x, tiles=32, micro_batch=1)
    with pytest.raises(InvalidInput, match="functional models with one input"):
        memfit.predict(keras.Sequential([keras.Input((3,)), L.Dense(2)]), np.zeros((1, 3)), tiles=32)


def _predict_large(side: int, tiles: str | None) -> float | str:
    import tensorflow as tf

    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((side, side, 1))
    for _ in range(3):
        x = L.Conv2D(12, 1, activation="relu")(x)
    x = L.Conv2D(1, 3, padding="same")(x)
    model = keras.Model(inputs, x)
    images = np.zeros((1, side, side, 1), "float32")
    events: list = []
    try:
        if tiles is None:
            model.predict(images, verbose=0)
        else:
            memfit.predict(model, images, tiles=tiles, verbose=0, events=events)
    except tf.errors.ResourceExhaustedError:
        return "out of memory"
    assert not events
    return tf.config.experimental.get_memory_info("CPU:0")["peak"] / 2**20


def test_auto_finds_tiles_for_an_image_that_stock_keras_has_no_memory_for() -> None:
    stock = prepared.in_arena(_predict_large, 1024, None, memory="1GiB")
    assert prepared.in_arena(_predict_large, 1024, None, memory="40MiB") == "out of memory"
    tiled = prepared.in_arena(_predict_large, 1024, "auto", memory="40MiB")
    assert tiled < stock / 3
