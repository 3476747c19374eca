"""Copied updates of an optimizer, held against those that Python writes."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from memfit.estimation.recording.updates import copy_updates

OPTIMIZERS = [
    "sgd",
    "adam",
    "adamw",
    "nadam",
    "adamax",
    "adagrad",
    "adadelta",
    "adafactor",
    "rmsprop",
    "lion",
    "ftrl",
]


def _trained(optimizer: str, *, copied: bool) -> tuple[list[Any], list[str], list[str]]:
    """Returns the weights after two steps, and the names and types of the ops that made them."""
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(6, activation="tanh") for _ in range(4)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    model.compile(keras.optimizers.get(optimizer), "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    if copied:
        copy_updates(model.optimizer)
    step = tf.function(tf.autograph.experimental.do_not_convert(lambda data: model.train_step(data)))
    x = np.linspace(-1, 1, 48, dtype="float32").reshape(8, 6)
    for _ in range(2):
        step((x, x**2))
    ops = step.get_concrete_function((x, x**2)).graph.get_operations()
    weights = [keras.ops.convert_to_numpy(v) for v in (*model.variables, *model.optimizer.variables)]
    return weights, [op.name for op in ops], sorted(op.type for op in ops)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_copied_update_does_what_a_written_one_does(optimizer):
    written, names, types = _trained(optimizer, copied=False)
    copies, copied_names, copied_types = _trained(optimizer, copied=True)
    assert all(np.array_equal(a, b) for a, b in zip(written, copies, strict=True))
    assert types == copied_types
    assert not any("/copy/" in name for name in names)
    assert any("/copy/" in name for name in copied_names)
