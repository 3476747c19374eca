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
        InvalidInput: If only the first batch could tell, and reading it would lose it (a generator).
    """
    if not private_apis.batches_itself(x):
        return _KERAS_DEFAULT if batch_size is None else batch_size
    if isinstance(x, keras.utils.PyDataset):
        return _samples(x[0])
    if hasattr(x, "element_spec"):
        first = next(leaf for leaf in keras.tree.flatten(x.element_spec) if hasattr(leaf, "shape"))
        known = first.shape[0]
        return int(known) if known is not None else _samples(next(iter(x.take(1))))
    raise InvalidInput(
        "The size of a generator's batches cannot be read without losing one",
        received=type(x).__name__,
        remedy="Make a plan with memfit.plan(model, batch_size=..., memory=...) and give it as plan=",
    )


def first_samples(x: Any, y: Any, sample_weight: Any) -> Any:
    """Some samples of the data as Keras gives them to a step; None where reading them would lose them."""
    if not private_apis.batches_itself(x):
        return x, y, sample_weight
    if isinstance(x, keras.utils.PyDataset):
        return x[0]
    return next(iter(x.take(1))) if hasattr(x, "element_spec") else None


def _samples(data: Any) -> int:
    return int(np.shape(next(leaf for leaf in keras.tree.flatten(data) if leaf is not None))[0])
