"""Data in every structure that Keras takes trains as in stock Keras: optional inputs left out, named tuples."""

from collections import namedtuple

import keras
import numpy as np
import pytest

import memfit

layers = keras.layers
Two = namedtuple("Two", ["first", "second"])


class Optional(layers.Layer):
    """Adds its second input, if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(2)

    def call(self, x: object, other: object = None) -> object:
        return self.dense(x if other is None else x + other)


def optional() -> keras.Model:
    x, other = keras.Input((2,), name="x"), keras.Input((2,), name="other", optional=True)
    return keras.Model({"x": x, "other": other}, Optional()(x, other))


def two_outputs() -> keras.Model:
    x = keras.Input((2,), name="x")
    return keras.Model(x, Two(layers.Dense(1, name="one")(x), layers.Dense(1, name="two")(x)))


SAMPLES = np.random.default_rng(0).normal(size=(32, 2)).astype("float32")
CASES = {
    "an optional input that is not given": (optional, {"x": SAMPLES, "other": None}, SAMPLES),
    "targets in a named tuple": (two_outputs, SAMPLES, Two(SAMPLES[:, :1], SAMPLES[:, 1:])),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("memory", [None, "1GiB"])
def test_it_trains_as_in_stock_keras(name, memory):
    make, x, y = CASES[name]
    losses = []
    for fit in (
        lambda model, **kwargs: model.fit(**kwargs),
        lambda model, **kwargs: memfit.fit(model, memory=memory, **kwargs),
    ):
        keras.utils.set_random_seed(0)
        model = make()
        model.compile("sgd", "mse" if name.startswith("an") else Two("mse", "mse"))
        losses.append(fit(model, x=x, y=y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"])
    assert losses[0] == losses[1]


@pytest.mark.parametrize("name", CASES)
def test_it_is_estimated(name):
    make, x, y = CASES[name]
    model = make()
    model.compile("sgd", "mse" if name.startswith("an") else Two("mse", "mse"))
    assert memfit.estimate(model, 8, data=(x, y)).peak > 0
