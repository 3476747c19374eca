"""What can be known of the data before the first step: whether there is any, and how large its batches are."""

from typing import Any

import keras
import numpy as np

from memfit.budgets.errors import InvalidInput
from memfit.training import private_apis

_KERAS_DEFAULT = 32


def check_not_empty(x: Any) -> None:
    """Refuses data that is known to have no sample."""
    if x is None:
        return
    if private_apis.batches_itself(x):
        cardinality = getattr(x, "cardinality", None)
        empty = int(cardinality()) == 0 if cardinality is not None else False
    else:
        leaves = [leaf for leaf in keras.tree.flatten(x) if hasattr(leaf, "shape")]
        empty = any(len(leaf.shape) > 0 and leaf.shape[0] == 0 for leaf in leaves)
    if empty:
        raise InvalidInput("There must be at least one sample to train on", received="no sample")


def batch_size_of(x: Any, batch_size: int | None) -> int:
    """The samples in a batch: what the user says, or what the data itself yields.

    Raises:
        InvalidInput: If only the first batch could tell.
    """
    if not private_apis.batches_itself(x):
        return _KERAS_DEFAULT if batch_size is None else batch_size
    if isinstance(x, keras.utils.PyDataset):
        return _samples(x[0])
    known = private_apis.dataset_batch_size(x)
    if known is not None:
        return known
    raise InvalidInput(
        "The size of these batches cannot be known without reading one, which would lose it or reshuffle the rest",
        received=type(x).__name__,
        remedy="Make a plan with memfit.plan(model, batch_size=..., memory=...) and give it as plan=",
    )


def first_samples(x: Any, y: Any, sample_weight: Any) -> Any:
    """Some samples of the data as Keras gives them to a step; None where reading them would change the rest.

    A generator would lose them, and a tf.data pipeline that shuffles would give another order afterwards.
    """
    if not private_apis.batches_itself(x):
        return x, y, sample_weight
    return x[0] if isinstance(x, keras.utils.PyDataset) else None


def _samples(data: Any) -> int:
    return int(np.shape(next(leaf for leaf in keras.tree.flatten(data) if leaf is not None))[0])
