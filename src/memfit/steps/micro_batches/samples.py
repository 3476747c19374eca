"""A batch as steps see it: all of it, or some samples at a time."""

from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from memfit.compat.tf_graphs import Tensor, compiles_with_xla, take_slice
from memfit.data.shapes import leaves_of
from memfit.errors import InvalidInput


@dataclass(frozen=True)
class Fraction:
    """The part of the batch that a micro-batch is: its samples, of those of the batch."""

    samples: Any
    of: Any

    def __rmul__(self, value: Any) -> Any:
        return value * (tf.cast(self.samples, value.dtype) / tf.cast(self.of, value.dtype))

    def whole(self, count: Any) -> Any:
        """What is `count` in the micro-batch is this in the batch, if it grows with the samples."""
        of, samples = tf.cast(self.of, tf.int64), tf.cast(self.samples, tf.int64)
        return tf.cast(tf.cast(count, tf.int64) * of // samples, tf.float64)


@dataclass(frozen=True)
class Part:
    """A micro-batch: its data, the fraction of the batch it is, and the divisors of the batch's losses."""

    x: Any
    y: Any
    sample_weight: Any
    fraction: Fraction
    divisors: Any = None


class Samples:
    """A batch.

    Attributes:
        count: The number of samples, a tensor.
        static_count: The same where the graph knows it, else None.
        specs: Something with shape and type in the place of each tensor of (x, y, sample_weight).
    """

    count: Any
    static_count: int | None
    specs: Any

    def whole(self) -> Any:
        """Returns all of it, as Keras gives it to a step."""
        raise NotImplementedError

    def part(self, start: Any, size: Any) -> tuple[Any, Any, Any]:
        """Returns x, y and sample_weight of some samples."""
        raise NotImplementedError


class TensorSamples(Samples):
    """A batch that is there as tensors."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self.specs = keras.utils.unpack_x_y_sample_weight(data)
        leaves = leaves_of(self.specs)
        for leaf in leaves:
            if leaf.shape.rank == 0:
                raise InvalidInput(
                    "A batch can be split into micro-batches only if everything in it has the batch as its "
                    "first dimension",
                    received=f"a scalar of {leaf.dtype.name} in the data",
                    remedy="Repeat the value for every sample, or fit without micro-batches",
                )
        self.static_count = leaves[0].shape[0]
        self.count = tf.shape(leaves[0])[0]

    def whole(self) -> Any:
        """Returns all of it."""
        return self._data

    def part(self, start: Any, size: Any) -> tuple[Any, Any, Any]:
        """Cuts some samples out of it."""
        x, y, sample_weight = keras.tree.map_structure(lambda t: slice_samples(t, start, size), self.specs)
        return x, y, sample_weight


def samples_of(data: Any) -> Samples:
    """Returns what a step was given as samples."""
    return data if isinstance(data, Samples) else TensorSamples(data)


def whole(data: Any) -> Any:
    """Returns all of what a step was given, as tensors."""
    return data.whole() if isinstance(data, Samples) else data


def slice_samples(tensor: Tensor, start: Any, size: Any) -> Any:
    """Returns some samples of a tensor, dense, ragged or sparse; of None, None."""
    if tensor is None:
        return None
    if isinstance(tensor, tf.RaggedTensor):
        return tensor[start : start + size]
    if isinstance(tensor, tf.SparseTensor):
        rest = tensor.dense_shape[1:]
        begin = tf.concat([[tf.cast(start, tf.int64)], tf.zeros_like(rest)], 0)
        return tf.sparse.slice(tensor, begin, tf.concat([[tf.cast(size, tf.int64)], rest], 0))
    if not tf.executing_eagerly() and compiles_with_xla(tf.compat.v1.get_default_graph()):
        # TensorFlow takes what `tf.slice` begins at for something that XLA has to know: where it depends on a
        # variable, as in a part that waits for others, every new value of that would be compiled anew.
        part = take_slice(tensor, start, size)
    else:
        rest = tf.shape(tensor)[1:]
        part = tf.slice(tensor, tf.concat([[start], tf.zeros_like(rest)], 0), tf.concat([[size], rest], 0))
    part.set_shape([None, *tensor.shape[1:]])
    return part
