"""Canaries of what memfit uses of TensorFlow's random numbers beside its public face."""

import pytest
import tensorflow as tf

from compat.canaries import canary
from memfit.compat import tf_random

DRAWS = {
    "uniform": lambda: tf.random.stateless_uniform([3], [1, 2]),
    "whole numbers": lambda: tf.random.stateless_uniform([3], [1, 2], 0, 9, tf.int32),
    "normal": lambda: tf.random.stateless_normal([3], [1, 2]),
    "dropout": lambda: tf.nn.experimental.stateless_dropout(tf.ones([3]), 0.5, [1, 2]),
    "truncated normal": lambda: tf.random.stateless_truncated_normal([3], [1, 2]),
    "gamma": lambda: tf.random.stateless_gamma([3], [1, 2], 1.0),
    "shuffle": lambda: tf.random.experimental.stateless_shuffle(tf.range(3), [1, 2]),
    "categorical": lambda: tf.random.stateless_categorical(tf.ones([1, 3]), 3, [1, 2]),
    "binomial": lambda: tf.random.stateless_binomial([3], [1, 2], 5.0, 0.5),
    "poisson": lambda: tf.random.stateless_poisson([3], [1, 2], 5.0),
}


@canary(
    "tf_random.draws_replaced", "gen_stateless_random_ops_v2.stateless_random_uniform_v2", of="tensorflow"
)
@pytest.mark.parametrize("name", DRAWS)
def test_every_draw_from_a_seed_can_be_replaced(name):
    draws = []

    def replace(draw):
        draws.append(draw)
        return draw.call(**draw.arguments)

    plain = DRAWS[name]()
    with tf_random.draws_replaced(replace):
        replaced = DRAWS[name]()
    assert len(draws) == 1
    assert {"counter", "seed"} & draws[0].arguments.keys()
    assert plain.numpy().tolist() == replaced.numpy().tolist() == DRAWS[name]().numpy().tolist()
    assert len(draws) == 1
