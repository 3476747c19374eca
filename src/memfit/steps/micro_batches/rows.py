"""Gradients that are lists of rows: which of them come with the samples, and which are there once for any batch.

An embedding looked up by the samples gives rows for each of them. Looked up by what is the same for all, such as
the positions of a sequence, it gives as many rows for a micro-batch as for the whole batch: sums over its samples.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from memfit.compat.tf_graphs import Op, Tensor, has_each_row_once, is_eager_tensor


class Piece(NamedTuple):
    """The rows that one look-up gives."""

    values: Any
    indices: Any


class Kind(NamedTuple):
    """What rows become when more samples come.

    Attributes:
        of_samples: Whether there are more of them; otherwise they are the same ones, each with a larger sum.
        once: Whether those of the same number are added up even so, as in a product with a sparse matrix.
    """

    of_samples: bool
    once: bool = False


class Rows(tf.IndexedSlices):
    """The gradient of a weight of which a step uses some rows, with what each of its look-ups gives."""

    def __init__(self, pieces: Sequence[Piece], kinds: Sequence[Kind], shape: Sequence[int]) -> None:
        values, indices = (
            parts[0] if len(parts) == 1 else tf.concat(parts, 0) for parts in zip(*pieces, strict=True)
        )
        super().__init__(values, indices, tf.constant(list(shape), tf.int64))
        self.pieces, self.kinds = list(pieces), list(kinds)


def rows_of(gradient: tf.IndexedSlices, shape: Sequence[int]) -> Rows:
    """Returns a gradient that TensorFlow gave as what its look-ups give."""
    if isinstance(gradient, Rows):
        return gradient
    pieces = pieces_of(gradient)
    once = not tf.executing_eagerly() and has_each_row_once(gradient)
    return Rows(pieces, [Kind(come_with_samples(piece.indices), once) for piece in pieces], shape)


def add_up_rows(values: Any, indices: Any) -> Piece:
    """Returns rows of which each is there once, the sum of those of the same number."""
    numbers, places = tf.unique(indices)
    return Piece(tf.math.unsorted_segment_sum(values, places, tf.size(numbers)), numbers)


def pieces_of(gradient: tf.IndexedSlices) -> list[Piece]:
    """Returns the rows of a gradient, those of each look-up by themselves; all as one where a step runs eagerly."""
    if tf.executing_eagerly():
        return [Piece(gradient.values, gradient.indices)]
    values, indices = gradient.values.op, gradient.indices.op
    if values.type != "ConcatV2" or indices.type != "ConcatV2" or len(values.inputs) != len(indices.inputs):
        return [Piece(gradient.values, gradient.indices)]
    # TensorFlow joins the rows of several look-ups; the last input says along which dimension.
    return [Piece(*pair) for pair in zip(values.inputs[:-1], indices.inputs[:-1], strict=True)]


def come_with_samples(tensor: Tensor) -> bool:
    """Whether a tensor depends on the samples of a step's batch, or on how many there are.

    An eager tensor does not say, and is taken for one that does.
    """
    if tf.executing_eagerly():
        return True
    seen: set[int] = set()
    waiting = [tensor]
    while waiting:
        tensor = waiting.pop()
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        op = tensor.op
        if op.type == "Placeholder":
            outside = {id(inner): outer for outer, inner in op.graph.captures}.get(id(tensor))
            if outside is None:  # what the step is given, or how far its loop is
                return True
            if not is_eager_tensor(outside) and outside.dtype != tf.resource:
                waiting.append(outside)
        elif not _is_another_length(op):
            waiting += op.inputs
    return False


def _is_another_length(op: Op) -> bool:
    """Whether an op takes from a shape a dimension that is not the first, in which the samples are."""
    if op.type != "StridedSlice" or op.inputs[0].op.type != "Shape" or not op.get_attr("shrink_axis_mask"):
        return False
    begin, rank = tf.get_static_value(op.inputs[1]), op.inputs[0].shape[0]
    return begin is not None and begin.size == 1 and rank is not None and int(begin[0]) % rank != 0
