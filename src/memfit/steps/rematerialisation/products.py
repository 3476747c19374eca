"""Backward passes without the full-size product that TensorFlow makes only to add it up."""

from collections.abc import Sequence
from typing import Any

from memfit.compat.tf_graphs import belong_together, forward_op_of, set_input

# Lower precisions are left alone: the kernel used here adds up in the type it reads.
_TYPES = ("float32", "float64")


def without_products(backward: Sequence[Any]) -> list[Any]:
    """Lets the gradient of a factor a channel be summed up without storing the product it is the sum of.

    In `y = x * scale`, with one scale a channel (every BatchNormalization), the gradient of the scale is the sum
    of `x * gradient` over all places. TensorFlow stores that product, as large as `x`, at the moment when the
    backward pass of a normalisation has most. The filter gradient of a depthwise 1x1 convolution is the same sum,
    and its kernel adds up as it goes: on two cores it took 0.6 to 0.8 of the time, and was nearer to the sum in
    float64.

    Nothing is changed where there is a GPU, whose kernel for it adds up in no fixed order.

    Args:
        backward: The backward ops in the order they were made.

    Returns:
        The backward ops in an order in which they can run; those that nothing reads any more are still there.
    """
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU"):
        return list(backward)
    order: list[Any] = []
    for op in backward:
        order.append(op)
        if _sums_a_product(op):
            x, gradient = op.inputs[0].op.inputs
            sums = tf.raw_ops.DepthwiseConv2dNativeBackpropFilter(
                input=x,
                filter_sizes=[1, 1, x.shape[-1], 1],
                out_backprop=gradient,
                strides=[1, 1, 1, 1],
                padding="VALID",
            )
            # A graph's edges keep their shape: one number a channel, in the last axis.
            total = tf.reshape(sums, [1, 1, 1, x.shape[-1]])
            for made in (sums.op.inputs[1].op, sums.op, total.op.inputs[1].op, total.op):
                belong_together(made, op)
                order.append(made)
            for reader in op.outputs[0].consumers():
                set_input(reader, 0, total)
    return order


def _sums_a_product(op: Any) -> bool:
    """Says whether an op is the sum that makes the gradient of a factor a channel, and is only reshaped."""
    import tensorflow as tf

    forward = forward_op_of(op)
    if op.type != "Sum" or forward is None or forward.type != "Mul":
        return False
    if sum(_is_one_a_channel(tensor.shape) for tensor in forward.inputs) != 1:
        return False
    product = op.inputs[0].op
    if product.type != "Mul" or op.outputs[0].dtype.name not in _TYPES:
        return False
    if any(tensor.shape.rank != 4 or tensor.shape[-1] is None for tensor in product.inputs):
        return False
    # A layer normalisation multiplies the scale with a factor a place, whose gradient is a sum over the channels.
    if tf.get_static_value(op.inputs[1]) is None or set(tf.get_static_value(op.inputs[1])) != {0, 1, 2}:
        return False
    of_factor = op.outputs[0].consumers()
    return (
        product.inputs[0].shape[-1] == product.inputs[1].shape[-1]
        and bool(of_factor)
        and all(reader.type == "Reshape" for reader in of_factor)
    )


def _is_one_a_channel(shape: Any) -> bool:
    """Says whether a factor has the shape [channels] or [1, 1, 1, channels]."""
    return shape.rank == 1 or (shape.rank == 4 and list(shape[:-1]) == [1, 1, 1])
