"""Validation arrays that stay where they are: Keras keeps a copy of them in the memory that steps need."""

from collections.abc import Mapping
from typing import Any

import keras

from memfit.compat.keras_training import has_strategy
from memfit.data.arrays import arrays
from memfit.steps.host_arrays import are_arrays
from memfit.training.batches import KERAS_DEFAULT

# Of the host's memory one batch ahead is wanted, and `arrays` takes a twentieth of what it is given.
_ONE_AHEAD = 20


def read_validation_as_needed(model: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of `fit` with batches of the validation arrays in the place of the arrays.

    Keras makes a tensor of all validation data at the first validation and keeps it to the end of the training:
    a step that was planned for the memory without it finds no room in the second epoch. The batches are the same.
    """
    changed = dict(arguments)
    data = changed["validation_data"]
    counted = changed["validation_steps"] is not None
    if counted or not isinstance(data, tuple | list) or not are_arrays(data) or has_strategy(model):
        return changed
    parts = keras.utils.unpack_x_y_sample_weight(tuple(data))
    size = int(changed["validation_batch_size"] or changed["batch_size"] or KERAS_DEFAULT)
    leaves = [leaf for leaf in keras.tree.flatten(parts) if leaf is not None]
    if len({len(leaf) for leaf in leaves}) > 1:
        return changed  # which Keras refuses in its own words
    batch = sum(leaf[:1].nbytes * size for leaf in leaves)
    changed["validation_data"] = arrays(*parts, batch_size=size, memory=max(1, _ONE_AHEAD * batch))
    changed["validation_batch_size"] = None
    return changed
