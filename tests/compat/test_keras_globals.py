"""Canaries of what Keras keeps for a whole process."""

import keras

from compat.canaries import canary
from memfit.compat import keras_globals


@canary("keras_globals.shared_seed_generator", "global_state.get_global_attribute", of="keras")
def test_keras_has_a_generator_for_draws_without_one() -> None:
    keras.random.normal((1,))
    before = keras_globals.shared_seed_generator().state.numpy().copy()
    keras.random.normal((1,))
    assert (keras_globals.shared_seed_generator().state.numpy() != before).any()


@canary("keras_globals.name_counters", "global_state.get_global_attribute", of="keras")
def test_layers_are_named_by_counters() -> None:
    keras.layers.Dense(1)  # the first of a process has no number
    second = keras.layers.Dense(1).name
    keras_globals.name_counters()["dense"] -= 1
    assert keras.layers.Dense(1).name == second


@canary("keras_globals.names_left_alone", "global_state.get_global_attribute", of="keras")
def test_layers_made_in_a_block_do_not_change_later_names() -> None:
    keras.layers.Dense(1)
    number = int(keras.layers.Dense(1).name.rpartition("_")[2])
    with keras_globals.names_left_alone():
        keras.layers.Dense(1)
    assert keras.layers.Dense(1).name == f"dense_{number + 1}"


@canary("keras_globals.names_from_the_first", "global_state.get_global_attribute", of="keras")
def test_layers_made_in_a_block_have_the_same_names_every_time() -> None:
    keras.layers.Dense(1)
    number = int(keras.layers.Dense(1).name.rpartition("_")[2])
    for _ in range(2):
        with keras_globals.names_from_the_first():
            assert [keras.layers.Dense(1).name for _ in range(2)] == ["dense", "dense_1"]
    assert keras.layers.Dense(1).name == f"dense_{number + 5}"
