"""Sums of gradients, two at a time."""

from collections.abc import Sequence

from memfit.compat.tf_graphs import Op, redirect_readers


def split_sums(backward: Sequence[Op]) -> list[Op]:
    """Lets backward ops add up three gradients and more one by one, from left to right, as AddN does.

    Where a graph seems to want nearly all memory, TensorFlow's memory optimizer gives an AddN two more buffers:
    a step that was recorded where there was room took less than in the memory it was recorded for.

    Returns:
        The backward ops in an order in which they can run; those that nothing reads any more are still there.
    """
    import tensorflow as tf

    order: list[Op] = []
    for op in backward:
        order.append(op)
        if op.type == "AddN" and len(op.inputs) > 2:
            total = op.inputs[0]
            for tensor in list(op.inputs)[1:]:
                total = tf.add(total, tensor)
                order.append(total.op)
            redirect_readers(op.outputs[0], total)
    return order
