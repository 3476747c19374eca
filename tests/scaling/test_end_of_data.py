"""Data of unknown length on several ranks ends as in stock Keras on one device."""

import warnings
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import memfit
from scaling.several_ranks import run_alone, run_ranks

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(22, 6))


def _train(*, by_memfit: bool, whole: bool, xla: bool) -> dict[str, Any]:
    """Losses and states after 3 epochs; `whole`: every rank reads whole batches, which are of a fixed size."""
    warnings.simplefilter("ignore")
    keras.config.set_floatx("float64")
    keras.utils.set_random_seed(4)
    dropout = [] if xla else [keras.layers.Dropout(0.4)]  # under XLA its numbers are others
    layers = [keras.layers.Dense(8), *dropout, keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    model.compile(keras.optimizers.AdamW(0.01, weight_decay=0.1), "mse", metrics=["mae"], jit_compile=xla)
    data = tf.data.Dataset.from_tensor_slices((X, X[:, :1])).filter(lambda *_: True)
    data = data.batch(8, drop_remainder=whole)
    if whole:
        data = data.map(lambda x, y: (x, y))
    fit = memfit.fit if by_memfit else keras.Model.fit
    history = fit(model, data, epochs=3, verbose=0, shuffle=False)
    states = [variable.numpy() for variable in (*model.variables, *model.optimizer.variables)]
    return {"logs": history.history, "states": states}


@pytest.mark.parametrize("how", [{}, {"whole": True}, {"xla": True}], ids=str)
def test_two_ranks_end_with_the_states_and_logs_of_one_device(how: dict[str, bool]) -> None:
    how = {"whole": False, "xla": False} | how
    stock = run_alone(partial(_train, by_memfit=False, **how))
    for rank in run_ranks(partial(_train, by_memfit=True, **how)):
        for one, expected in zip(rank["states"], stock["states"], strict=True):
            np.testing.assert_allclose(one, expected, rtol=1e-9, atol=1e-12)
        for name, values in stock["logs"].items():
            np.testing.assert_allclose(rank["logs"][name], values, rtol=1e-6, err_msg=name)
