"""What can be known of the data before the first step: whether there is any, and how large its batches are."""

from collections.abc import Mapping
from typing import Any

import keras

from memfit.compat import keras_data
from memfit.compat.tf_datasets import dataset_batch_size
from memfit.data.peeking import FirstBatch, first_batch, is_generator, peek_at_generator
from memfit.data.shapes import count_samples
from memfit.errors import CannotTell, InvalidInput

KERAS_DEFAULT = 32
_NO_SAMPLE = "There must be at least one sample to train on"


def check_not_empty(x: Any) -> None:
    """Refuses data that is known to have no sample."""
    if x is None:
        return
    if keras_data.batches_itself(x):
        cardinality = getattr(x, "cardinality", None)
        empty = int(cardinality()) == 0 if cardinality is not None else False
    else:
        leaves = [leaf for leaf in keras.tree.flatten(x) if hasattr(leaf, "shape")]
        empty = any(len(leaf.shape) > 0 and leaf.shape[0] == 0 for leaf in leaves)
    if empty:
        raise InvalidInput(_NO_SAMPLE, received="no sample")


def look_ahead(x: Any) -> tuple[Any, FirstBatch | None]:
    """Returns the data, and its first batch where that can be had and still comes first.

    A tf.data pipeline that shuffles would give another order after a look; arrays need none.

    Raises:
        InvalidInput: If there is no batch.
    """
    if isinstance(x, keras.utils.PyDataset):
        return x, FirstBatch(first_batch(x))
    if not is_generator(x):
        return x, None
    try:
        first, x = peek_at_generator(x)
    except StopIteration:
        raise InvalidInput(_NO_SAMPLE, received="no sample") from None
    return x, FirstBatch(first)


def batch_size_of(x: Any, batch_size: int | None, first: FirstBatch | None = None) -> int:
    """The samples in a batch: what the user says, or what the data itself yields.

    Raises:
        CannotTell: If only the first batch could tell.
    """
    if first is not None:
        return count_samples(first.batch)
    if not keras_data.batches_itself(x):
        return KERAS_DEFAULT if batch_size is None else batch_size
    known = dataset_batch_size(x) if keras_data.is_dataset(x) else None
    if known is not None:
        return known
    raise CannotTell(
        "The batch size is not known without reading a batch, which would lose it or reshuffle the rest",
        received="a tf.data.Dataset" if keras_data.is_dataset(x) else type(x).__name__,
        remedy="Make a plan with memfit.plan(model, batch_size=..., memory=...) and pass it as plan=",
    )


def first_samples(arguments: Mapping[str, Any], first: FirstBatch | None) -> Any:
    """Some samples of the data as Keras gives them to a step; None where reading them would change the rest."""
    if not keras_data.batches_itself(arguments["x"]):
        return tuple(arguments[name] for name in ("x", "y", "sample_weight"))
    return None if first is None else first.batch


def count_data(data: Any) -> int | None:
    """Returns how many samples arrays have, or how many batches a dataset; None where only its end will tell."""
    if data is None:
        return None
    if isinstance(data, keras.utils.PyDataset):
        return data.num_batches
    if hasattr(data, "cardinality"):
        batches = int(data.cardinality())
        return batches if batches >= 0 else None
    first = next(iter(keras.tree.flatten(data)), None)
    shape = getattr(first, "shape", None)
    return int(shape[0]) if shape else None
