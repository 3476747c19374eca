"""Gradients of 3D convolutions, some channels at a time, on a CPU."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod

import tensorflow as tf

from memfit.budgets.peaks import device_name
from memfit.compat.tf_graphs import Op, Tensor, belong_together, clone, forward_op_of, redirect_readers

# In how many parts the channels are cut, at the most: each is one op more.
_PARTS = 8
# Fewer channels are not worth it: unfolding one at a time took four times as long.
_LEAST = 4


def split_volumes(
    backward: Sequence[Op], results: Sequence[Tensor | None]
) -> tuple[list[Op], list[Tensor | None]]:
    """Lets the gradients of a 3D convolution be computed for some of its input's channels at a time.

    TensorFlow's CPU kernels unfold a volume for them: for each position the whole neighbourhood, in every channel.
    A kernel of 3 takes 27 times its input: 1.1 GiB for 12 channels of 96^3, where all other tensors of a U-Net's
    step take 0.2. Of some channels it is a part. A channel's gradients depend on that channel alone, so the sums
    are the same ones.

    Returns:
        The backward ops in an order in which they can run, among them those that nothing reads any more, and the
        results, some of which other ops give now.
    """
    if not device_name().startswith("CPU"):  # cuDNN has other ways
        return list(backward), list(results)
    order: list[Op] = []
    replaced: dict[int, Tensor] = {}
    for op in backward:
        order.append(op)
        build, cuts = _BUILDERS.get(op.type), _list_cuts(op)
        if build is None or len(cuts) < 3:
            continue
        first = len(op.graph.get_operations())
        new = build(op, cuts)
        for added in op.graph.get_operations()[first:]:
            belong_together(added, op)
            order.append(added)
        replaced[id(op.outputs[0])] = new
        redirect_readers(op.outputs[0], new)
    return order, [replaced.get(id(result), result) for result in results]


def _list_cuts(op: Op) -> list[int]:
    """Lists where the channels of a convolution's input are cut, both ends included; nothing where they are not."""
    if op.type not in _BUILDERS:
        return []
    shape = _find_filter(op).shape
    channels = (op.inputs[0] if op.type == "Conv3DBackpropFilterV2" else op.outputs[0]).shape
    grouped = channels.rank != 5 or shape.rank != 5 or channels[-1] != shape[3]
    if grouped or not shape.is_fully_defined() or op.get_attr("data_format") != b"NDHWC":
        return []
    *window, inputs, outputs = shape.as_list()
    # Until the unfolded part is about as large as what the convolution reads and writes.
    some = max(_LEAST, (inputs + outputs) // prod(window), -(-inputs // _PARTS))
    return [*range(0, inputs, some), inputs]


def _find_filter(op: Op) -> Tensor:
    forward = forward_op_of(op)
    return op.inputs[1] if op.type == "Conv3DBackpropInputV2" or forward is None else forward.inputs[1]


def _build_filter_gradient(op: Op, cuts: Sequence[int]) -> Tensor:
    *window, _, outputs = _find_filter(op).shape.as_list()
    parts = []
    for begin, end in pairwise(cuts):
        some = tf.slice(op.inputs[0], [0, 0, 0, 0, begin], [-1, -1, -1, -1, end - begin])
        sizes = tf.constant([*window, end - begin, outputs], tf.int32)
        parts.append(clone(op, [some, sizes, op.inputs[2]]).outputs[0])
    return tf.concat(parts, axis=3)


def _build_input_gradient(op: Op, cuts: Sequence[int]) -> Tensor:
    parts = []
    for begin, end in pairwise(cuts):
        some = tf.slice(op.inputs[1], [0, 0, 0, begin, 0], [-1, -1, -1, end - begin, -1])
        sizes = tf.concat([op.inputs[0][:-1], tf.constant([end - begin], op.inputs[0].dtype)], axis=0)
        parts.append(clone(op, [sizes, some, op.inputs[2]]).outputs[0])
    return tf.ensure_shape(tf.concat(parts, axis=4), op.outputs[0].shape)


_BUILDERS: dict[str, Callable[[Op, Sequence[int]], Tensor]] = {
    "Conv3DBackpropFilterV2": _build_filter_gradient,
    "Conv3DBackpropInputV2": _build_input_gradient,
}
