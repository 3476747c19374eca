"""Sparse and ragged inputs in micro-batches train as they do with stock Keras."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import memfit
from memfit import InvalidInput
from training.parity import levers

RANDOM = np.random.default_rng(3)
# Few columns, so that every micro-batch has most of them.
DENSE = (RANDOM.random((22, 6)) * (RANDOM.random((22, 6)) < 0.4)).astype("float32")
Y = RANDOM.random((22, 1)).astype("float32")
SPARSE = tf.sparse.from_dense(DENSE)
RAGGED = tf.RaggedTensor.from_row_lengths(np.arange(33) % 9, [2, 1] * 11)


def squared(y: Any, predicted: Any) -> Any:
    return tf.reduce_mean(tf.square(y - predicted), -1)


def network(x: Any, loss: Any, *, run_eagerly: bool = False) -> keras.Model:
    keras.utils.set_random_seed(2)
    if isinstance(x, tf.RaggedTensor):
        first = [keras.Input((None,), dtype="int32"), layers.Embedding(9, 3), layers.GlobalAveragePooling1D()]
    else:
        first = [keras.Input((6,), sparse=True), layers.Dense(8, activation="relu")]
    model = keras.Sequential([*first, layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), loss, run_eagerly=run_eagerly)
    return model


def batches(x: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((x, Y)).batch(8)


def trained(fit: Any, model: keras.Model, x: Any, form: str, **how: Any) -> tuple[list[float], list[Any]]:
    if form == "whole":
        history = fit(x, Y, batch_size=8, epochs=2, shuffle=False, verbose=0, **how)
    else:
        # A generator gives its batches once.
        data = (batch for batch in batches(x).repeat(2)) if form == "generator" else batches(x).repeat(2)
        history = fit(data, epochs=2, steps_per_epoch=3, verbose=0, **how)
    return history.history["loss"], [variable.numpy() for variable in model.variables]


@pytest.mark.filterwarnings("ignore:.shuffle=True. was passed")
@pytest.mark.parametrize("form", ["whole", "generator", "dataset"])
@pytest.mark.parametrize("x", [SPARSE, RAGGED], ids=["sparse", "ragged"])
def test_they_train_as_stock_keras_in_whatever_form_they_come(x: Any, form: str) -> None:
    # A loss of one's own is checked on a few samples first.
    stock, model = network(x, squared), network(x, squared)
    losses, weights = trained(stock.fit, stock, x, form)
    plan = levers(model, 8, micro_batch=3)
    planned, planned_weights = trained(lambda *a, **k: memfit.fit(model, *a, **k), model, x, form, plan=plan)
    np.testing.assert_allclose(planned, losses, rtol=1e-5)
    for ours, theirs in zip(planned_weights, weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_an_eager_step_is_refused_for_sparse_inputs_with_the_remedy() -> None:
    model = network(SPARSE, "mse", run_eagerly=True)
    with pytest.raises(InvalidInput, match="Compile the model without run_eagerly"):
        memfit.fit(model, SPARSE, Y, batch_size=8, verbose=0, plan=levers(model, 8, micro_batch=3))
