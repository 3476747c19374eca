"""A micro-batch, and the fraction of its batch that it is."""

from dataclasses import dataclass
from typing import Any

import tensorflow as tf


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
