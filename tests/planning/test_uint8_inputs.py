"""The advice to feed uint8 is for images."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from memfit import Size
from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.levers.uint8_inputs import Uint8Inputs

RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (12, 8, 8, 3))


def why_not(shape: tuple[int, ...], x: Any = None, dtype: str = "float32") -> str | None:
    model = keras.Sequential([keras.Input(shape, dtype=dtype), keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    if isinstance(x, np.ndarray):
        x = (x, np.zeros((len(x), 1), "float32"))
    return Uint8Inputs().why_not(Job(model, 4, Size("1GiB"), Fidelity.EXACT, data=x))


@pytest.mark.parametrize("shape", [(80, 6), (80,), (8, 8, 2), (4, 8, 8, 3), (8, 8, 12)])
def test_it_is_not_given_for_shapes_that_no_image_has(shape: tuple[int, ...]) -> None:
    assert "not float images" in (why_not(shape) or "")


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_it_is_given_for_shapes_of_images(channels: int) -> None:
    assert why_not((8, 8, channels)) is None


@pytest.mark.parametrize(
    "x",
    [PIXELS, PIXELS / 255, PIXELS / 127.5 - 1],
    ids=["whole", "0 to 1", "-1 to 1"],
)
def test_it_is_given_for_pixels_however_they_are_scaled(x: Any) -> None:
    assert why_not((8, 8, 3), x.astype("float32")) is None


def test_it_is_not_given_for_values_that_8_bits_do_not_hold() -> None:
    assert "not float images" in (
        why_not((8, 8, 3), RANDOM.normal(size=(12, 8, 8, 3)).astype("float32")) or ""
    )
    assert "not float images" in (why_not((8, 8, 3), (PIXELS * 9).astype("float32")) or "")


def test_it_is_not_given_where_the_inputs_are_in_8_bits() -> None:
    assert "not float images" in (why_not((8, 8, 3), dtype="uint8") or "")


def test_nothing_of_a_dataset_is_read_for_it() -> None:
    read = []

    def give() -> Any:
        read.append(1)
        yield np.zeros((4, 8, 8, 3), "float32"), np.zeros((4, 1), "float32")

    specs = (tf.TensorSpec((4, 8, 8, 3)), tf.TensorSpec((4, 1)))
    assert why_not((8, 8, 3), tf.data.Dataset.from_generator(give, output_signature=specs)) is None
    assert not read
