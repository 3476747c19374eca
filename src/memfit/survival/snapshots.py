"""The state of a training at a batch boundary: all variables of the model, and all random numbers to come."""

import random
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from memfit.compat import tf_runtime
from memfit.errors import InvalidInput
from memfit.estimation.optimizers import optimizers_of


def variables_of(model: keras.Model) -> list[Any]:
    """Weights, statistics, seeds, metrics and the optimizers' states, each once, in one order in all processes."""
    variables = [*model.variables]
    for holder in (*model.metrics, *optimizers_of(model)):
        variables += holder.variables
    unique = {id(variable): variable for variable in variables}
    return list(unique.values())


def copy_values(model: keras.Model) -> list[Any]:
    """Copies of all values in the host's memory."""
    return [variable.numpy() for variable in variables_of(model)]


def put_back(model: keras.Model, values: Sequence[Any]) -> None:
    """Gives all variables the values that `copy_values` returned for the same model.

    Raises:
        InvalidInput: If the model has other variables; nothing has been changed then.
    """
    variables = variables_of(model)
    shapes = [tuple(variable.shape) for variable in variables]
    if shapes != [tuple(value.shape) for value in values]:
        raise InvalidInput(
            "A checkpoint can only be restored into the model it was made from",
            received=f"{len(values)} values for {len(variables)} variables, or other shapes",
            remedy="Train from the beginning: memfit run without --resume",
        )
    for variable, value in zip(variables, values, strict=True):
        kind = tf.as_dtype(variable.dtype).as_numpy_dtype
        variable.assign(value if value.dtype == kind else value.view(kind))


def random_states() -> dict[str, Any]:
    """The states of the random numbers that Python, NumPy, Keras and TensorFlow draw outside of models."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        **tf_runtime.random_states(),
    }


def put_back_random_states(states: dict[str, Any]) -> None:
    """Lets all random numbers go on from what `random_states` returned."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    tf_runtime.put_back_random_states(states)
