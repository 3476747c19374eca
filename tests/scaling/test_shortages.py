"""A rank that runs out of memory: it tightens its own steps, the others wait for it, and the result is the same."""

from typing import Any

import keras
import numpy as np
from keras import layers

import memfit
from memfit.budgets.arena import arena_environment
from scaling.several_ranks import run_alone, run_ranks


def _train(fit: Any) -> tuple[list[Any], list[str]]:
    keras.config.set_floatx("float64")
    keras.utils.set_random_seed(1)
    # Small inputs and weights, and some 2 MiB of activations for each layer of a share.
    model = keras.Sequential([keras.Input((8,)), layers.RepeatVector(2000)])
    for _ in range(6):
        model.add(layers.Dense(8, activation="tanh"))
    model.add(layers.GlobalAveragePooling1D())
    model.add(layers.Dense(1))
    model.compile(keras.optimizers.SGD(0.1, global_clipnorm=0.1), "mse")
    random = np.random.default_rng(0)
    x, y = random.normal(size=(64, 8)), random.normal(size=(64, 1))
    history = fit(model, x, y, batch_size=32, shuffle=False, verbose=0)
    memory = getattr(history, "memory", None)
    events = [] if memory is None else [str(event) for event in memory.events]
    return [variable.numpy() for variable in model.variables], events


def _on_a_rank() -> tuple[list[Any], list[str]]:
    from memfit.scaling.communicator import join_cluster

    ranks = join_cluster()
    assert ranks is not None
    if ranks.rank == 1:
        _leave(13 * 2**20)
    # Planned for plenty: only the guard knows that one rank has little.
    return _train(lambda *args, **more: memfit.fit(*args, **more, memory="10GiB"))


def _leave(left: int) -> None:
    """Takes all of the arena but some bytes, for as long as the process lives."""
    import tensorflow as tf

    from memfit.budgets.budget import budget

    free = int(budget().devices[0].free)
    global _taken
    _taken = tf.raw_ops.Empty(shape=[free - left], dtype=tf.uint8)


_taken: Any = None


def test_a_rank_that_runs_out_of_memory_tightens_its_own_steps_and_the_result_is_exact() -> None:
    states, _ = run_alone(_train, keras.Model.fit)
    (first, calm), (second, events) = run_ranks(_on_a_rank, **arena_environment("96MiB"))
    assert any("Out of memory in training" in event for event in events), events
    assert not any("Out of memory" in event for event in calm)
    for one, other, expected in zip(first, second, states, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one, expected, rtol=1e-10, atol=1e-12)
