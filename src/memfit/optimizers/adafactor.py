"""Adafactor without the copy of the weights that Keras's keeps."""

from typing import Any

import keras
import tensorflow as tf

from memfit.compat.keras_optimizers import adafactor_velocities, slot_number


@keras.saving.register_keras_serializable(package="memfit")
class Adafactor(keras.optimizers.Adafactor):
    """Keras's Adafactor, bit by bit, without its `velocity` for matrices and kernels.

    Adafactor keeps a row and a column factor of every matrix instead of a second moment. Keras's computes the
    moment from the factors in every step, and keeps it until the next step computes it again: as much as SGD's
    momentum takes. Here it is freed. Vectors have no factors, and keep their moments. It takes the arguments of
    `keras.optimizers.Adafactor`.

    Example:
        >>> import keras, memfit
        >>> model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(128)])
        >>> model.compile(memfit.optimizers.Adafactor(1e-2), "mse")
    """

    def add_variable_from_reference(
        self, reference_variable: Any, name: str | None = None, initializer: Any = "zeros"
    ) -> Any:
        """Makes a variable like another one; of what has factors no velocity."""
        if name == "velocity" and is_factored(reference_variable):
            return None
        return super().add_variable_from_reference(reference_variable, name=name, initializer=initializer)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates a variable and its factors."""
        update_without_velocity(self, gradient, variable, learning_rate)


def is_factored(variable: Any) -> bool:
    """Whether Adafactor keeps factors of a variable."""
    return len(variable.shape) >= 2


def update_without_velocity(optimizer: Any, gradient: Any, variable: Any, learning_rate: Any) -> None:
    """Does Keras's own update, with a place for the velocity that ends with it."""
    update = keras.optimizers.Adafactor.update_step
    if not is_factored(variable):
        update(optimizer, gradient, variable, learning_rate)
        return
    velocities, place = adafactor_velocities(optimizer), slot_number(optimizer, variable)
    own = velocities[place]
    velocities[place] = _Passing(variable.dtype)
    try:
        update(optimizer, gradient, variable, learning_rate)
    finally:
        velocities[place] = own


def velocity_of(rows: Any, columns: Any) -> Any:
    """Returns the velocity that Keras's Adafactor would have computed last from its factors."""
    share = tf.math.divide_no_nan(rows.value, tf.reduce_mean(rows.value, axis=-1, keepdims=True))
    return tf.expand_dims(share, -1) * tf.expand_dims(columns.value, -2)


class _Passing:
    """As much of a variable as an update needs of one that it assigns to and then reads."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        self._value: Any = None

    def assign(self, value: Any) -> None:
        self._value = value

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
        return tf.convert_to_tensor(self._value, dtype)
