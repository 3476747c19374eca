"""Canaries of what memfit uses of Keras's optimizers beside its public face."""

import keras
import pytest
import tensorflow as tf

from compat.canaries import canary
from memfit.compat import keras_optimizers


@pytest.fixture
def variables() -> list[keras.Variable]:
    return [keras.Variable([1.0, 2.0]), keras.Variable([3.0])]


@pytest.fixture
def adam(variables: list[keras.Variable]) -> keras.Optimizer:
    optimizer = keras.optimizers.Adam()
    optimizer.build(variables)
    return optimizer


@canary(
    "keras_optimizers.know_own_variables",
    "Optimizer._trainable_variables",
    "Optimizer._trainable_variables_indices",
    "Optimizer._var_key",
    of="keras",
)
def test_an_optimizer_from_another_process_finds_its_variables(variables, adam):
    adam._trainable_variables_indices = {}  # as they are when the ids are those of other objects
    keras_optimizers.know_own_variables(adam)
    adam.apply([tf.ones([2]), tf.ones([1])], variables)
    assert int(adam.iterations) == 1


@canary("keras_optimizers.optimizer_slots", "Optimizer._trainable_variables", of="keras")
def test_the_slots_of_adam_are_two_for_each_variable(adam):
    shapes = [[tuple(slot.shape) for slot in slots] for slots in keras_optimizers.optimizer_slots(adam)]
    assert shapes == [[(2,), (1,)]] * 2


@canary("keras_optimizers.slot_number", "Optimizer._get_variable_index", of="keras")
def test_a_variable_has_its_number_in_the_slots(variables, adam):
    assert [keras_optimizers.slot_number(adam, variable) for variable in variables] == [0, 1]


@canary("keras_optimizers.around_updates", "Optimizer._backend_update_step", of="keras")
def test_a_function_is_put_around_the_updates(variables, adam):
    values = []

    def around(update, gradients, trained, rate):
        update(gradients[1:], trained[1:], rate)
        values.extend(float(variable[0]) for variable in variables)

    take_away = keras_optimizers.around_updates(adam, around)
    first = float(variables[0][0])
    adam.apply([tf.ones([2]), tf.ones([1])], variables)
    assert values == [first, pytest.approx(2.999)]
    take_away()
    adam.apply([tf.ones([2]), tf.ones([1])], variables)
    assert float(variables[0][0]) < first


@canary("keras_optimizers.is_built_for", "Optimizer._trainable_variables", of="keras")
def test_an_optimizer_is_known_by_the_variables_it_keeps_state_for():
    one, two, optimizer = keras.Variable(1.0), keras.Variable(2.0), keras.optimizers.Adam()
    assert not keras_optimizers.is_built_for(optimizer, one.value)
    optimizer.build([one])
    assert keras_optimizers.is_built_for(optimizer, one.value)
    assert not keras_optimizers.is_built_for(optimizer, two.value)


@canary("keras_optimizers.adam_moments", "Adam._momentums", "Adam._velocities", of="keras")
def test_an_adam_has_two_lists_of_moments(variables, adam):
    momentums, velocities = keras_optimizers.adam_moments(adam)
    adam.apply([tf.ones([2]), tf.ones([1])], variables)
    assert float(momentums[1][0]) == pytest.approx(0.1)
    assert float(velocities[1][0]) == pytest.approx(0.001)


@canary("keras_optimizers.adafactor_velocities", "Adafactor._v", of="keras")
@canary("keras_optimizers.adafactor_factors", "Adafactor._r", "Adafactor._c", of="keras")
def test_an_adafactor_has_factors_and_a_velocity_for_a_matrix():
    optimizer, matrix = keras.optimizers.Adafactor(), keras.Variable(tf.ones([2, 3]))
    optimizer.build([matrix])
    optimizer.apply([tf.ones([2, 3])], [matrix])
    rows, columns = keras_optimizers.adafactor_factors(optimizer, 0)
    assert (rows.shape, columns.shape) == ((2,), (3,))
    assert keras_optimizers.adafactor_velocities(optimizer)[0].shape == (2, 3)


@canary("keras_optimizers.swap_variables", "Optimizer._variables", of="keras")
def test_an_optimizer_has_the_variables_that_it_is_given_and_then_its_own_again(variables, adam):
    own = keras_optimizers.swap_variables(adam, variables)
    assert adam.variables == variables
    keras_optimizers.swap_variables(adam, own)
    assert len(adam.variables) == 6


@canary("keras_optimizers.trained_variables", "Optimizer._trainable_variables", of="keras")
def test_an_optimizer_knows_what_it_was_built_for(variables, adam):
    assert all(a is b for a, b in zip(keras_optimizers.trained_variables(adam), variables, strict=True))
