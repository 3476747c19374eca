"""Letting copies of forward ops wait under XLA, by a data dependency that changes no number."""

from collections.abc import Sequence

from memfit.compat.tf_graphs import Tensor, materialised
from memfit.steps.rematerialisation.rewrite.xla_order import find_smallest
from memfit.steps.waiting import never


def build_flag(awaited: Sequence[Tensor]) -> Tensor:
    """Builds a boolean that is there when some tensors are.

    One element of what XLA computes elementwise or joins would wait for little of it, so it is stored first. So is
    the flag: each copy would have what it waited for in memory till it is computed itself.
    """
    return materialised(never([materialised(tensor) for tensor in awaited]))


def make_wait(inputs: list[Tensor], flag: Tensor) -> None:
    """Lets the smallest input that carries data wait for a flag; shapes must stay constants for XLA."""
    import tensorflow as tf

    number = find_smallest(inputs)
    if number is None:
        return
    tensor = inputs[number]
    if tensor.dtype == tf.bool:
        inputs[number] = tf.logical_or(tensor, flag)
    elif tensor.dtype.is_floating:
        not_a_number = tf.constant(float("nan"), tensor.dtype)
        inputs[number] = tensor + tf.where(flag, not_a_number, tf.zeros([], tensor.dtype))
    else:
        inputs[number] = tensor + tf.cast(flag, tensor.dtype)
