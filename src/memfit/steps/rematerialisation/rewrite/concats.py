"""Backward passes of convolutions over concatenations, part by part, without the concatenation."""

from collections.abc import Sequence

import tensorflow as tf

from memfit.compat.tf_graphs import (
    Op,
    Tensor,
    belong_to,
    belong_together,
    clone,
    forward_op_of,
    redirect_readers,
)

_WEIGHTS = {"ReadVariableOp", "Const"}
# What may follow a convolution or another op that makes a part, and belongs to it.
_FOLLOWERS = {"BiasAdd", "Identity", "Reshape", "Squeeze", "ExpandDims"}


def split_concats(
    backward: Sequence[Op], results: Sequence[Tensor | None], *, at_once: bool = False
) -> tuple[list[Op], list[Tensor | None]]:
    """Lets the backward pass of a convolution over concatenated channels read and make the parts one by one.

    A U-Net convolves a skip and what comes from below, concatenated. Its backward pass wants the concatenation for
    the filter's gradient, makes the gradient of the whole, and cuts it into copies: three times both tensors. The
    filter's gradient for some channels follows from these channels alone, and the gradient of some channels from
    their part of the filter. So the same sums are made part by part, and neither whole is needed. The gradient of
    the part that was made last is made first; those of the others wait until it has been used. Under XLA all are
    made at once: choices are made with the other order, but where a U-Net's skip waited, XLA left gaps around its
    gradient (83 MiB a sample instead of 76, in 16 parts).

    Args:
        results: What the backward pass is for: tensors, slices of tensors, or None.
        at_once: Whether the gradients of all parts are made one after the other, with nothing between.

    Returns:
        The backward ops in an order in which they can run, among them those that nothing reads any more, and the
        results, some of which other ops give now.
    """
    order: list[Op] = []
    replaced: dict[int, Tensor] = {}
    indices = {op: index for index, op in enumerate(backward[0].graph.get_operations())} if backward else {}
    for op in backward:
        order.append(op)
        first = len(op.graph.get_operations())
        if op.type == "Conv2DBackpropFilter":
            parts = _list_parts(op.inputs[0], forward_op_of(op).inputs[1])
            new = _build_filter_gradient(op, parts) if parts else None
        else:
            parts = _list_parts_of_gradient(op)
            new = _build_part_of_gradient(op, parts) if parts else None
        if new is None:
            continue
        replaced[id(op.outputs[0])] = new
        for added in op.graph.get_operations()[first:]:
            belong_together(added, op)
            order.append(added)
        latest = max(parts, key=lambda part: indices[part.op])
        if not at_once and op.type == "Slice" and parts[op.inputs[1].value_index] is not latest:
            belong_to(new.op, _find_maker(latest.op, indices))
        redirect_readers(op.outputs[0], new)
    return order, [replaced.get(id(result), result) for result in results]


def _build_filter_gradient(op: Op, parts: Sequence[Tensor]) -> Tensor:
    """Builds the gradients of the parts of a filter, and the filter's from them."""
    height, width, _, filters = forward_op_of(op).inputs[1].shape
    gradients = [
        clone(op, [part, tf.constant([height, width, part.shape[-1], filters], tf.int32), op.inputs[2]])
        for part in parts
    ]
    return tf.concat([gradient.outputs[0] for gradient in gradients], axis=2)


def _build_part_of_gradient(cut: Op, parts: Sequence[Tensor]) -> Tensor:
    """Builds what a slice cuts from the gradient of a concatenation, from its part of the filter."""
    whole, number = cut.inputs[0].op, cut.inputs[1].value_index
    before = sum(part.shape[-1] for part in parts[:number])
    some = tf.slice(whole.inputs[1], [0, 0, before, 0], [-1, -1, parts[number].shape[-1], -1])
    return clone(whole, [tf.shape(parts[number]), some, whole.inputs[2]]).outputs[0]


def _find_maker(op: Op, indices: dict[Op, int]) -> Op:
    """Finds the op that made what an op reads; a bias or a reshape after it belong to it."""

    def find_source(op: Op) -> Op:
        makers = [
            tensor.op for tensor in op.inputs if tensor.shape.rank == 4 and tensor.op.type not in _WEIGHTS
        ]
        return max(makers, key=lambda maker: indices.get(maker, -1), default=op)

    while op.type in _FOLLOWERS and find_source(op) is not op:
        op = find_source(op)
    return find_source(op)


def _list_parts(tensor: Tensor, filters: Tensor) -> list[Tensor]:
    """Lists what a convolution's input was concatenated from, in its channels; nothing if it was not."""
    op = tensor.op
    if op.type != "ConcatV2" or tensor.shape.rank != 4:
        return []
    parts = list(op.inputs)[:-1]
    if tf.get_static_value(op.inputs[-1]) not in (3, -1) or any(part.shape[-1] is None for part in parts):
        return []
    # A convolution in groups has a filter of fewer channels, which belong to all parts.
    same = filters.shape.is_fully_defined() and filters.shape[2] == sum(part.shape[-1] for part in parts)
    return parts if same and _channels_are_last(tensor) else []


def _channels_are_last(tensor: Tensor) -> bool:
    return all(
        reader.get_attr("data_format") == b"NHWC" for reader in tensor.consumers() if reader.type == "Conv2D"
    )


def _list_parts_of_gradient(cut: Op) -> list[Tensor]:
    """Lists the parts of a concatenation if a slice is cut from its gradient, and that is a convolution's."""
    concat = forward_op_of(cut)
    if cut.type != "Slice" or concat is None:
        return []
    whole = cut.inputs[0].op
    if concat.type != "ConcatV2" or whole.type != "Conv2DBackpropInput":
        return []
    if cut.inputs[1].op.type != "ConcatOffset":
        return []
    return _list_parts(concat.outputs[0], whole.inputs[1])
