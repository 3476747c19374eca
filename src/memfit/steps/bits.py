"""Values as whole numbers with the same bits: sums of floats would lose the sign of 0 where ranks send zeros."""

from typing import Any

import tensorflow as tf


def integers_for(dtype: Any) -> Any:
    """Returns the type of numbers that hold the bits of another type, and that collectives can add up."""
    return tf.int32 if dtype.size == 4 and (dtype.is_floating or dtype == tf.int32) else tf.int64


def as_integers(value: Any) -> Any:
    """Returns the bits of a tensor as numbers that collectives can add up."""
    kind = integers_for(value.dtype)
    if value.dtype.is_floating:
        value = tf.bitcast(value, {2: tf.uint16, 4: tf.int32, 8: tf.int64}[value.dtype.size])
    elif value.dtype == tf.uint64:
        value = tf.bitcast(value, tf.int64)
    return tf.cast(value, kind)


def from_integers(bits: Any, dtype: Any) -> Any:
    """The tensor that `as_integers` was given."""
    dtype = tf.as_dtype(dtype)
    if dtype.is_floating:
        return tf.bitcast(tf.cast(bits, tf.uint16) if dtype.size == 2 else bits, dtype)
    return tf.bitcast(bits, dtype) if dtype == tf.uint64 else tf.cast(bits, dtype)
