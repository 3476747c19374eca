"""Arrays that stay on the host: the same training as stock Keras's, sample by sample, in its order."""

import gc
import weakref
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import memfit
from memfit.steps.host_arrays import why_not_host_arrays
from training.parity import levers

RNG = np.random.default_rng(3)
X = RNG.normal(size=(40, 6))  # float64, which Keras makes float32 of
Y = RNG.integers(0, 3, 40)
WEIGHT = RNG.uniform(0.1, 3.0, 40).astype("float32")


def _classifier() -> keras.Model:
    inputs = keras.Input((6,))
    x = layers.BatchNormalization()(layers.Dense(8, activation="tanh")(inputs))
    model = keras.Model(inputs, layers.Dense(3, activation="softmax")(x))
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def _tagger() -> keras.Model:
    """Two inputs by name, masks, two outputs."""
    ids, size = keras.Input((5,), dtype="int32", name="ids"), keras.Input((5, 2), name="size")
    x = layers.Embedding(7, 4, mask_zero=True)(ids)
    x = layers.Concatenate()([x, size])
    outputs = {
        "tag": layers.Dense(3, activation="softmax", name="tag")(x),
        "sum": layers.Dense(1, name="sum")(x),
    }
    model = keras.Model({"ids": ids, "size": size}, outputs)
    model.compile(
        keras.optimizers.SGD(0.1), {"tag": "sparse_categorical_crossentropy", "sum": "mse"}, jit_compile=False
    )
    return model


def _tags() -> dict[str, Any]:
    x = {"ids": RNG.integers(0, 7, (40, 5)), "size": RNG.normal(size=(40, 5, 2)).astype("float32")}
    return {"x": x, "y": {"tag": RNG.integers(0, 3, (40, 5)), "sum": x["size"].sum(axis=-1, keepdims=True)}}


CASES: dict[str, Any] = {
    "shuffled, with class weights and a validation split": (
        _classifier,
        {"x": X, "y": Y, "class_weight": {0: 0.2, 1: 1.0, 2: 4.0}, "validation_split": 0.2},
        None,
    ),
    "shuffled batches, sample weights": (
        _classifier,
        {"x": X, "y": Y, "sample_weight": WEIGHT, "shuffle": "batch"},
        None,
    ),
    "named inputs, masks, two outputs, micro-batches": (_tagger, _tags(), 3),
    "several steps an epoch, eagerly": (_classifier, {"x": X, "y": Y, "steps_per_epoch": 3}, None),
}


@pytest.mark.parametrize("case", CASES)
def test_the_training_is_that_of_stock_keras(case: str) -> None:
    make, data, micro_batch = CASES[case]

    def trained(with_memfit: bool) -> tuple[Any, Any]:
        keras.utils.set_random_seed(5)
        model = make()
        if case.endswith("eagerly"):
            model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", run_eagerly=True)
        arguments = {"batch_size": 16, "epochs": 2, "verbose": 0, **data}
        if with_memfit:
            plan = levers(model, 16, micro_batch, inputs_on_host=True)
            history = memfit.fit(model, plan=plan, **arguments)
            assert history.memory.events == ()
        else:
            history = model.fit(**arguments)
        return model.get_weights(), history.history

    (ours, our_history), (stock, stock_history) = trained(True), trained(False)
    for a, b in zip(ours, stock, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert our_history.keys() == stock_history.keys()
    for name, values in our_history.items():
        np.testing.assert_allclose(values, stock_history[name], rtol=1e-5)


def test_steps_are_kept_for_the_next_fit_and_read_its_arrays_and_hold_none() -> None:
    model = _classifier()
    plan = levers(model, 8, inputs_on_host=True)
    first, second = X[:16].astype("float32"), X[16:32].astype("float32")
    before = model.get_weights()
    memfit.fit(model, first, Y[:16], plan=plan, shuffle=False, verbose=0)
    gone = weakref.ref(first)
    del first
    gc.collect()
    assert gone() is None
    model.set_weights(before)
    memfit.fit(model, second, Y[16:32], plan=plan, shuffle=False, verbose=0)
    ours = model.get_weights()
    model.set_weights(before)
    model.fit(second, Y[16:32], batch_size=8, shuffle=False, verbose=0)
    for a, b in zip(ours, model.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_what_tightening_looks_at_is_the_batch_itself() -> None:
    import tensorflow as tf

    from memfit.steps.host_arrays import HostArrays

    arrays = ({"a": X, "b": Y}, Y)
    host = HostArrays(arrays)
    with host.holding(arrays):
        x, y = host.read((tf.constant([3, 1, 2]),))
        np.testing.assert_array_equal(x["a"], X[[3, 1, 2]])
        np.testing.assert_array_equal(y, Y[[3, 1, 2]])
        assert isinstance(x["b"], np.ndarray)  # on the host: there is no room on the device just then


def test_data_that_comes_in_batches_is_trained_all_the_same_and_that_is_said() -> None:
    import tensorflow as tf

    model = _classifier()
    data = tf.data.Dataset.from_tensor_slices((X.astype("float32"), Y)).batch(8)
    history = memfit.fit(model, data, plan=levers(model, 8, inputs_on_host=True), shuffle=False, verbose=0)
    assert any("stay on the host" in str(event) for event in history.memory.events)


def test_a_step_that_xla_compiles_does_not_read_from_the_host() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    assert why_not_host_arrays(model, np.ones((4, 2))) is None
    model.compile("sgd", "mse", jit_compile=True)
    assert "XLA" in str(why_not_host_arrays(model, np.ones((4, 2))))
