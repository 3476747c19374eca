"""Backward passes without the full-size copies that TensorFlow makes of the gradients of means and variances."""

from collections.abc import Sequence
from typing import Any

from memfit.compat.tf_graphs import Op, Tensor, clone, forward_op_of, redirect_readers

# How TensorFlow spreads a gradient: the one where it knows the batch, the other where it does not.
_SPREAD = {"Tile", "BroadcastTo"}
# These give the same numbers when one of their inputs is spread over the other's shape only inside them.
_SPREADING = {"Mul", "RealDiv"}


def remove_tiles(backward: Sequence[Op]) -> list[Op]:
    """Lets backward ops read the gradient of a mean or variance as it is, instead of tiled to the full shape.

    The gradient of `variance = mean((x - m) ** 2)` is one number a channel. TensorFlow tiles it to the shape of
    `x`, divides and doubles it there, and then multiplies it with `x - m`. Dividing and doubling first and
    spreading in the last product gives the same numbers, bit for bit, and spares an activation's worth of memory
    in each normalisation, at the very moment when the backward pass has most. The same holds for a mean's gradient
    that is added to others.

    Sums of three and more are made one by one, from left to right, as AddN makes them. Where a graph seems to want
    nearly all memory there is, TensorFlow's memory optimizer gives such an AddN two more buffers of the sum's
    size: a step that was recorded where there was room took less than in the memory it was recorded for.

    Args:
        backward: The backward ops in the order they were made.

    Returns:
        The backward ops in an order in which they can run; those that nothing reads any more are still there.
    """
    small: dict[Any, Tensor] = {}  # what was tiled, or follows from it -> the same before it is spread
    order: list[Op] = []
    for op in backward:
        order.append(op)
        if op.type in _SPREAD and _spreads(op):
            small[op.outputs[0].ref()] = op.inputs[0]
        elif op.type in _SPREADING and sum(tensor.ref() in small for tensor in op.inputs) == 1:
            other = next(tensor for tensor in op.inputs if tensor.ref() not in small)
            is_last = _gives_the_shape(op, other)
            if other.shape.rank == 0 or is_last:
                copy = clone(op, [small.get(tensor.ref(), tensor) for tensor in op.inputs])
                order.append(copy)
                if is_last:
                    redirect_readers(op.outputs[0], copy.outputs[0])
                else:
                    small[op.outputs[0].ref()] = copy.outputs[0]
        elif op.type == "AddN":
            spread = sum(tensor.ref() in small for tensor in op.inputs)
            if spread == 1 or len(op.inputs) > 2:
                sums = _add_one_by_one(
                    [small.get(tensor.ref(), tensor) if spread == 1 else tensor for tensor in op.inputs]
                )
                order += [made.op for made in sums]
                redirect_readers(op.outputs[0], sums[-1])
    return order


def _add_one_by_one(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Adds tensors from left to right, as AddN does, and returns the sums on the way."""
    import tensorflow as tf

    sums = [tensors[0]]
    for tensor in tensors[1:]:
        sums.append(tf.add(sums[-1], tensor))
    return sums[1:]


def _gives_the_shape(op: Op, other: Tensor) -> bool:
    """Says whether an op is the product of a spread gradient with `x - m`, which has the full shape by itself."""
    forward = forward_op_of(op)
    return forward is not None and forward.type == "SquaredDifference" and other.op.type == "Sub"


def _spreads(op: Op) -> bool:
    """Says whether an op only repeats axes of size 1, as broadcasting does."""
    before, after = op.inputs[0].shape, op.outputs[0].shape
    if before.rank is None or after.rank != before.rank:
        return False
    return all(a in (1, b) for a, b in zip(before, after, strict=True))
