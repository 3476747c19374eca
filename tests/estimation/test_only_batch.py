"""Steps that run with one batch size only, because it is written into their code."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import memfit
from memfit.errors import InvalidInput
from memfit.estimation.recording.batches import ladder
from memfit.estimation.recording.failures import op_failures
from memfit.planning.does_not_fit import DoesNotFit

BATCH = 12


class Rendering(keras.Model):
    """A step of its own that knows its batch, and computes with numbers in float32 beside its network."""

    def __init__(self) -> None:
        super().__init__()
        self.network = keras.Sequential(
            [keras.Input((256,)), keras.layers.Dense(512, "relu"), keras.layers.Dense(4)]
        )
        self.mean = keras.metrics.Mean(name="loss")

    def train_step(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            rays = tf.reshape(self.network(x, training=True), (BATCH, 2, 2))
            loss = tf.reduce_mean(rays * tf.ones((BATCH, 2, 2)))
        weights = self.network.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.mean.update_state(loss)
        return {"loss": self.mean.result()}


def _rendering() -> keras.Model:
    model = Rendering()
    model.compile("sgd", jit_compile=False)
    return model


def test_a_step_that_knows_its_batch_is_recorded_with_it() -> None:
    data = tf.data.Dataset.from_tensor_slices(np.zeros((24, 256), "float32")).batch(
        BATCH, drop_remainder=True
    )
    estimate = memfit.estimate(_rendering(), BATCH, data=data)
    assert estimate.made_from.fixed_batch == BATCH
    assert estimate.peak > estimate.breakdown["weights"]
    with pytest.raises(InvalidInput, match="allow only batches of 12"):
        estimate.at(2 * BATCH)


def test_it_is_refused_where_its_code_fails_under_the_last_lever() -> None:
    data = tf.data.Dataset.from_tensor_slices(np.zeros((24, 256), "float32")).batch(
        BATCH, drop_remainder=True
    )
    with pytest.raises(DoesNotFit) as caught:  # in 16 bits it would multiply bfloat16 by float32
        memfit.plan(_rendering(), BATCH, memory="600KiB", data=data)
    assert "this batch would fit" not in str(caught.value)
    closest = caught.value.closest
    assert closest is not None
    why = {row.name: row.why for row in closest.levers}
    assert why["micro-batches"] == "its step runs with no other batch than one of 12"


def test_what_the_users_code_raises_is_no_error_of_the_recorder() -> None:
    with pytest.raises(memfit.MemfitError, match="failed on synthetic data: TypeError"), op_failures():
        raise TypeError("mine")
    with pytest.raises(TypeError), op_failures():
        ladder("12", 2)  # type: ignore[arg-type]
