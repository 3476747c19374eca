"""One rank's share of every batch of a tf.data pipeline: samples of other ranks are dropped before decoding.

A pipeline is cut where the last maps before its `batch` begin. Behind that place all is one element in, one element
out, so that dropping elements there drops the same samples that would have been cut off from the finished batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from memfit.compat import tf_datasets
from memfit.compat.tf_datasets import MOVING_OPS, PYTHON_OPS, RANDOM_OPS
from memfit.compat.tf_graphs import Tensor

_BEHIND_BATCH = ("prefetch", "with_options", "repeat", "skip", "take")
_BEHIND_CUT = ("prefetch", "with_options")
_CHEAP = ("concatenate", "range", "shuffle", "tensor", "tensorslice", "zip", *_BEHIND_BATCH)


class CannotCut(Exception):
    """Says why samples of other ranks have to be read."""


@dataclass(frozen=True)
class Cut:
    """A pipeline, taken apart where samples can be dropped.

    Attributes:
        source: What every rank reads whole: file names, records, arrays.
        maps: The stages from there to `batch`, in the order in which they run.
        batch: The stage that makes batches.
        behind: The stages behind it, in the order in which they run.
    """

    source: Any
    maps: Sequence[Any]
    batch: Any
    behind: Sequence[Any]

    @property
    def repeated(self) -> list[str]:
        """The stages before the cut that read or compute something, on every rank."""
        stages = [tf_datasets.stage_of(part) for part in tf_datasets.dataset_parts(self.source)]
        return [stage for stage in dict.fromkeys(stages) if stage not in _CHEAP]

    def share(self, rank: int, count: int) -> Any:
        """Returns a dataset of the same batches, each with the samples of one rank; some may be empty."""
        size = tf_datasets.dataset_batch_size(self.batch)
        assert size is not None
        is_tuple = type(self.source.element_spec) is tuple  # then tf.data calls functions with its parts
        windows = self.source.window(size, drop_remainder=tf_datasets.drops_remainder(self.batch))

        def drop(*window: Any) -> Any:
            elements = tf.data.Dataset.zip(window if is_tuple else window[0])
            first, samples = split_in_graph(elements.cardinality(), rank, count)
            # A rank without a sample of the last batch has it all the same: with one that is taken out at the end.
            kept = elements.skip(tf.where(samples > 0, first, 0))
            kept = kept.take(tf.maximum(samples, 1))
            return kept.map(lambda *each: (samples > 0, each if is_tuple else each[0]))

        dataset = windows.flat_map(drop)
        for part in self.maps:
            if tf_datasets.stage_of(part) == "map":
                function, options = tf_datasets.function_of_map(part)
                dataset = dataset.map(_beside_flag(function), **options)
            else:
                dataset = tf_datasets.make_stage(part, dataset)
        largest = -(-(size - rank) // count)
        dataset = dataset.batch(largest).map(_take_out_placeholder)
        if (batches := self.batch.cardinality()) >= 0:  # windows of a pipeline lose it, and Keras asks for it
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(batches))
        for part in self.behind:
            dataset = tf_datasets.make_stage(part, dataset)
        return dataset


def find_cut(dataset: Any) -> Cut:
    """Returns where a pipeline can be cut.

    Raises:
        CannotCut: Says why it cannot.
    """
    part, behind = _walk(dataset, _BEHIND_BATCH)
    stage = tf_datasets.stage_of(part)
    if stage == "map":
        raise CannotCut("a map behind its batch() may look at all samples of a batch")
    if stage != "batch":
        raise CannotCut(f"its batches are made, or changed, by {stage}")
    batch = part
    part, maps = _walk(tf_datasets.inputs_of(batch)[0], (*_BEHIND_CUT, "map"))
    for each in maps:
        _check_map(each)
    if any(isinstance(spec, tf.SparseTensorSpec) for spec in tf.nest.flatten(dataset.element_spec)):
        raise CannotCut("its samples are sparse")
    return Cut(part, maps[::-1], batch, behind[::-1])


def split_in_graph(samples: Tensor, rank: int | Tensor, count: int | Tensor) -> tuple[Tensor, Tensor]:
    """Returns the number of the first sample of a rank's share, and how many it has; first ranks have one more."""
    least, more = samples // count, samples % count
    rank = tf.cast(rank, samples.dtype)
    return rank * least + tf.minimum(rank, more), least + tf.cast(rank < more, samples.dtype)


def _walk(dataset: Any, stages: Sequence[str]) -> tuple[Any, list[Any]]:
    """Goes up a pipeline as long as its stages are among these; returns the first other one, and those."""
    passed = []
    while tf_datasets.stage_of(dataset) in stages:
        passed.append(dataset)
        (dataset,) = tf_datasets.inputs_of(dataset)
    return dataset, passed


def _check_map(part: Any) -> None:
    """Refuses a function whose results depend on the samples that it was called with before."""
    if tf_datasets.stage_of(part) != "map":
        return
    for op in tf_datasets.ops_of_functions(part):
        if op.op in RANDOM_OPS | MOVING_OPS:
            raise CannotCut("its map draws random numbers one after the other")
        if op.op in PYTHON_OPS and not tf_datasets.is_parallel(part):
            raise CannotCut(
                "its map calls Python for one sample after the other (num_parallel_calls=... says that the order "
                "does not matter)"
            )


def _beside_flag(function: Any) -> Any:
    """A map's function for elements that have a flag beside them, called as tf.data would call it."""

    def call(flag: Tensor, element: Any) -> Any:
        result = function(*element) if type(element) is tuple else function(element)
        return flag, tuple(result) if isinstance(result, list) else result

    return call


def _take_out_placeholder(flags: Tensor, batch: Any) -> Any:
    """A batch without its sample, where that is only there for the others."""
    samples = tf.math.count_nonzero(flags)
    return tf.nest.map_structure(lambda tensor: tensor[:samples], batch)
