"""Going back to a batch: whether data gives the same batches in the same order again, and if not, why not.

There are two ways back. A new process runs the whole script again, so whatever the script seeds comes out the
same, and Keras's own loop skips the batches already trained: `Feed.reproducible`. In this
process the data has moved on, and only an order that is the same in every pass can be opened again: `Feed.reopen`.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from memfit.compat import keras_data, tf_datasets, tf_runtime
from memfit.compat.tf_datasets import MOVING_OPS, PYTHON_OPS, RANDOM_OPS
from memfit.data.peeking import keep_random_numbers
from memfit.data.pipeline import pipeline_of
from memfit.errors import InvalidInput


@dataclass(frozen=True)
class Feed:
    """The data of a training, and the ways back to its batches.

    Attributes:
        why_not: Why a new process would not see the same batches in the same order; empty where it would.
        opener: From epoch and batch to an iterator, in this process; None where the order has moved on.
    """

    why_not: str = ""
    opener: Callable[[int, int], Any] | None = None

    @property
    def reproducible(self) -> bool:
        """Whether a new process that runs the same script sees the same batches in the same order."""
        return not self.why_not

    def reopen(self, epoch: int, batch: int) -> Any:
        """Returns an iterator of this process that goes on at a batch, as TensorFlow's own.

        Args:
            epoch: Passes over the data since the feed was made.
            batch: Batches of that pass to leave out.

        Raises:
            InvalidInput: If this data cannot be opened again in this process.
        """
        if self.opener is None:
            raise InvalidInput(
                "This data cannot be opened again at a batch", received=self.why_not or "moved on"
            )
        return self.opener(epoch, batch)


def feed(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    shuffle: Any = True,
    class_weight: dict[int, float] | None = None,
    validation_split: float = 0.0,
) -> Feed:
    """Says how the data given to `fit` can be gone back to; nothing is read but a PyDataset's first batch."""
    pipeline = pipeline_of(x)
    if pipeline is not None:
        begun = pipeline.order.position.epoch
        return Feed(opener=lambda epoch, batch: iter(pipeline.resume(begun + epoch, batch)))
    if not keras_data.batches_itself(x):
        if shuffle and tf_runtime.global_seed() is None:
            return Feed("Keras shuffles the arrays and no seed is set (keras.utils.set_random_seed)")

        def open_at(epoch: int, batch: int) -> Any:
            # With a seed set, Keras's order is the same in every epoch: its permutation begins anew.
            arrays = (x, y, sample_weight)
            if validation_split:
                arrays = keras_data.split_off_validation(arrays, validation_split)[0]
            dataset = keras_data.array_dataset(*arrays, batch_size, shuffle, class_weight)
            return iter(dataset.skip(batch))

        return Feed(opener=open_at)
    if isinstance(x, keras.utils.PyDataset):
        return Feed(_why_not_py_dataset(x, shuffle))
    if not keras_data.is_dataset(x):
        return Feed(f"a {type(x).__name__} cannot be rewound")
    why_not = next(_doubts(x), "")
    if why_not or class_weight is not None or _moves_on(x):
        return Feed(why_not)
    return Feed(opener=lambda epoch, batch: iter(x.skip(batch)))


def feed_of(arguments: Mapping[str, Any]) -> Feed:
    """Says the same of the training data of a call of `fit`, by the names of its arguments."""
    names = ("x", "y", "sample_weight", "batch_size", "shuffle", "class_weight", "validation_split")
    return feed(**{name: arguments[name] for name in names})


def fingerprint_data(*data: Any) -> int:
    """Returns a number that tells arrays apart, as a rule: a checksum of some of their rows; 0 for no arrays."""
    fingerprint = 0
    for leaf in keras.tree.flatten(data):
        if isinstance(leaf, np.ndarray) and leaf.ndim and len(leaf) and leaf.dtype.kind != "O":
            rows = np.linspace(0, len(leaf) - 1, 16).astype(int)
            fingerprint = zlib.crc32(
                repr((leaf.shape, leaf.dtype)).encode() + leaf[rows].tobytes(), fingerprint
            )
    return fingerprint


def _why_not_py_dataset(data: Any, shuffle: Any) -> str:
    base = keras.utils.PyDataset
    if any(
        getattr(type(data), name) is not getattr(base, name) for name in ("on_epoch_begin", "on_epoch_end")
    ):
        return "its on_epoch_begin or on_epoch_end may change the order"
    if shuffle and data.workers > 1:
        return "Keras shuffles a PyDataset with several workers in another thread"
    with keep_random_numbers(data):
        pairs = list(zip(keras.tree.flatten(data[0]), keras.tree.flatten(data[0]), strict=True))
    if not all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs):
        return "its first batch differs each time it is read"
    return ""


def _doubts(dataset: Any) -> Iterator[str]:
    """Yields why a tf.data pipeline may give other batches in a new process."""
    if dataset.options().deterministic is False:
        yield "its options let elements come in any order (deterministic=False)"
    for part in tf_datasets.dataset_parts(dataset):
        if tf_datasets.is_from_service(part):
            yield "tf.data service hands elements out in any order"
        if tf_datasets.is_out_of_order(part):
            yield "it lets elements come in any order (deterministic=False)"
        if tf_datasets.is_cache(part) and any(_is_random(below) for below in tf_datasets.dataset_parts(part)):
            yield "the first pass freezes a random order in its cache"
        if tf_datasets.shuffle_seeds(part) == (0, 0):
            yield "shuffle() has no seed, and none is set (keras.utils.set_random_seed)"
        yield from _doubts_of_functions(part)


def _doubts_of_functions(part: Any) -> Iterator[str]:
    for op in tf_datasets.ops_of_functions(part):
        if op.op in PYTHON_OPS:
            yield "it runs Python code, which memfit cannot inspect"
        elif op.op in MOVING_OPS:
            yield "random numbers in it depend on how many were drawn before"
        elif op.op.startswith("ShuffleDataset"):
            yield "it shuffles inside of a function"
        elif op.op in RANDOM_OPS and op.attr["seed"].i == op.attr["seed2"].i == 0:
            yield "it draws random numbers without a seed"
        elif op.op in RANDOM_OPS and tf_datasets.is_parallel(part):
            yield "it draws random numbers in several threads, whose order is random"


def _is_random(part: Any) -> bool:
    drawn = any(op.op in RANDOM_OPS for op in tf_datasets.ops_of_functions(part))
    return drawn or tf_datasets.shuffle_seeds(part) is not None


def _moves_on(dataset: Any) -> bool:
    """Whether a further pass over the dataset has another order."""
    return any(tf_datasets.reshuffles(part) for part in tf_datasets.dataset_parts(dataset))
