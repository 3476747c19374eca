"""Validation arrays are read batch by batch: Keras would keep a copy of them beside every later step."""

from typing import Any

import cloudpickle
import keras
import numpy as np
import pytest

from memfit.training.validation_data import read_validation_as_needed
from prepared import in_arena
from training import parity

cloudpickle.register_pickle_by_value(parity)

MIB = 2**20
RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(22, 3)), RANDOM.integers(0, 4, (22, 1))
GIVEN = {"validation_steps": None, "validation_batch_size": 8, "batch_size": 4}


def in_use_after_each_epoch(samples: int) -> list[int]:
    import keras
    import tensorflow as tf
    from keras import layers

    import memfit

    model = keras.Sequential([keras.Input((1024,)), layers.Dense(2), layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.zeros((64, 1024), "float32")
    seen: list[int] = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: seen.append(
            tf.config.experimental.get_memory_info("CPU:0")["current"]
        )
    )
    validation = np.zeros((samples, 1024), "float32"), np.zeros((samples, 1), "float32")
    memfit.fit(
        *(model, x, x[:, :1]),
        batch_size=32,
        epochs=2,
        verbose=0,
        plan=parity.levers(model, 32),
        validation_data=validation,
        callbacks=[note],
    )
    return seen


def test_what_is_in_use_after_a_validation_does_not_depend_on_how_much_is_validated() -> None:
    before, after = in_arena(in_use_after_each_epoch, 4096, memory="128MiB")  # 16 MiB of them
    assert after - before < 4 * MIB


@pytest.mark.parametrize("data", [(X, Y), [X, Y], (X, Y, np.ones(22)), ({"a": X, "b": X}, Y)])
def test_the_batches_are_those_of_keras(data: Any) -> None:
    changed = read_validation_as_needed(keras.Sequential(), {**GIVEN, "validation_data": data})
    parts = keras.utils.unpack_x_y_sample_weight(tuple(data))
    adapter = keras.src.trainers.data_adapters.array_data_adapter.ArrayDataAdapter(*parts, batch_size=8)
    stock, ours = list(adapter.get_tf_dataset()), list(changed["validation_data"])
    assert len(ours) == len(stock) == 3
    for a, b in zip(keras.tree.flatten(stock), keras.tree.flatten(ours), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "given",
    [
        {"validation_data": (X, Y), "validation_steps": 2},  # Keras would go on in the middle of the data
        {"validation_data": (X, Y[:5])},
        {"validation_data": (X.tolist(), Y)},
        {"validation_data": None},
    ],
)
def test_other_data_is_left_as_it_is(given: dict[str, Any]) -> None:
    arguments = {**GIVEN, **given}
    assert read_validation_as_needed(keras.Sequential(), arguments) == arguments
