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
from memfit.steps.sharded_state import shard_of, sharded_state


def variables_of(model: keras.Model) -> list[Any]:
    """Weights, statistics, seeds, metrics and the optimizers' states, each once, in one order in all processes."""
    variables = [*model.variables]
    for holder in (*model.metrics, *optimizers_of(model)):
        shard = shard_of(holder)
        variables += holder.variables if shard is None else shard.variables
    unique = {id(variable): variable for variable in variables}
    return list(unique.values())


def copy_values(model: keras.Model) -> list[Any]:
    """Copies of all values in the host's memory."""
    shard = sharded_state(model)
    read = shard.value_of if shard is not None else lambda variable: variable.numpy()
    return [read(variable) for variable in variables_of(model)]


def is_whole(model: keras.Model) -> bool:
    """Whether this process knows all values: of an optimizer's state that ranks share, at the ends of epochs."""
    shard = sharded_state(model)
    return shard is None or shard.is_whole()


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
    shard = sharded_state(model)
    put = shard.put if shard is not None else lambda variable, value: variable.assign(value)
    for variable, value in zip(variables, values, strict=True):
        kind = tf.as_dtype(variable.dtype).as_numpy_dtype
        put(variable, value if value.dtype == kind else value.view(kind))


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
