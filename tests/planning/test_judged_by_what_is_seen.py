"""Micro-batches are judged by what a model is seen to do, not by what it has or whether it is built."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.levers.micro_batches import MicroBatches
from memfit.sizes import Size

X = np.random.default_rng(3).normal(size=(16, 6, 4)).astype("float32")


class Positions(layers.Layer):
    """A table of its own that nothing changes, as of sines and cosines."""

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(shape=shape[1:], initializer="ones", trainable=False)

    def call(self, x: Any) -> Any:
        return x + self.table


class RunningMean(layers.Layer):
    """A user's own statistics, for inference alone: no output and no gradient of training tells of them."""

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False, name="mean")

    def call(self, x: Any, training: bool = False) -> Any:
        if not training:
            return x - self.mean
        self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(x, (0, 1)))
        return x


class Counter(layers.Layer):
    """Counts its calls in a variable of TensorFlow's, which Keras does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = tf.Variable(0.0, trainable=False, name="calls")

    def call(self, x: Any) -> Any:
        self.calls.assign_add(1.0)
        return x


class CountsInLoop(Counter):
    """The same within a loop and a branch."""

    def call(self, x: Any) -> Any:
        def count(index: Any) -> Any:
            tf.cond(index > 0, lambda: self.calls.assign_add(1.0).read_value(), lambda: 0.0)
            return index + 1

        tf.while_loop(lambda index: index < 3, count, [tf.constant(0)])
        return x


class Written(keras.Model):
    """A model that is not built before its first batch, and has a layer that it never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head, self.unused = layers.Dense(8), layers.Dense(1), layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.head(self.hidden(x))


def judge(model: keras.Model, y: Any = X[..., :1], **compiling: Any) -> tuple[Fidelity, str]:
    model.compile("sgd", "mse", **compiling)
    job = Job(model, 16, Size("1GiB"), Fidelity.NEAR, (X, y))
    return MicroBatches().fidelity(job), MicroBatches().explain(job)


def chain(layer: Any) -> keras.Model:
    return keras.Sequential([keras.Input((6, 4)), layer, layers.Dense(1)])


@pytest.mark.parametrize("eager", [False, True], ids=["traced", "eager"])
def test_a_weight_that_is_only_read_leaves_micro_batches_exact(eager: bool) -> None:
    assert judge(chain(Positions()), run_eagerly=eager)[0] == Fidelity.EXACT


def test_a_loop_over_time_that_reads_weights_and_draws_masks_leaves_micro_batches_exact() -> None:
    model = keras.Sequential(
        [
            keras.Input((6, 4)),
            Positions(),
            layers.LSTM(3, dropout=0.2, recurrent_dropout=0.2),
            layers.Dense(1),
        ]
    )
    assert judge(model, y=X[:, 0, :1])[0] == Fidelity.EXACT


@pytest.mark.parametrize("layer", [RunningMean, Counter, CountsInLoop])
@pytest.mark.parametrize("trainable", [True, False], ids=["trained", "frozen"])
def test_a_weight_that_a_pass_writes_makes_them_near_and_is_named(layer: Any, trainable: bool) -> None:
    own = layer()
    own.trainable = trainable
    fidelity, why = judge(chain(own))
    assert fidelity == Fidelity.NEAR
    assert "changes with every micro-batch" in why
    assert ("mean" if layer is RunningMean else "calls") in why


@pytest.mark.filterwarnings(
    "ignore:.build... was called on layer"
)  # Keras's, of the layer that is never called
@pytest.mark.parametrize("eager", [False, True], ids=["traced", "eager"])
def test_a_model_that_can_be_built_is_judged_like_the_built_one(eager: bool) -> None:
    assert judge(Written(), run_eagerly=eager) == (Fidelity.EXACT, "no layer looks across the batch")
