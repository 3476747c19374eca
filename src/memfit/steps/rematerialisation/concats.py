"""Backward passes of convolutions over concatenations, part by part, without the concatenation."""

from collections.abc import Sequence
from typing import Any

from memfit.compat.tf_graphs import belong_to, belong_together, clone, forward_op_of, set_input

_WEIGHTS = {"ReadVariableOp", "Const"}
_ADDED = {"BiasAdd", "Identity", "Reshape", "Squeeze", "ExpandDims"}


def without_concats(
    backward: Sequence[Any], results: Sequence[Any], *, at_once: bool = False
) -> tuple[list[Any], list[Any]]:
    """Lets the backward pass of a convolution over concatenated channels read and make the parts one by one.

    A U-Net convolves a skip and what comes from below, concatenated. Its backward pass wants the concatenation for
    the filter's gradient, makes the gradient of the whole, and cuts it into copies: three times both tensors. The
    filter's gradient for some channels follows from these channels alone, and the gradient of some channels from
    their part of the filter. So the same sums are made part by part, and neither whole is needed. The gradient of
    the part that was made last is made first; those of the others wait until it has been used. Under XLA all are
    made at once: choices are made with the other order, but where a U-Net's skip waited, XLA left gaps around its
    gradient (83 MiB a sample instead of 76, in 16 parts).

    Args:
        backward: The backward ops in the order they were made.
        results: What the backward pass is for: tensors, slices of tensors, or None.
        at_once: Whether the gradients of all parts are made one after the other, with nothing between.

    Returns:
        The backward ops in an order in which they can run, among them those that nothing reads any more, and the
        results, some of which other ops give now.
    """
    order: list[Any] = []
    instead: dict[int, Any] = {}
    places: dict[Any, int] = {}
    for op in backward:
        order.append(op)
        first = len(op.graph.get_operations())
        made = None
        if op.type == "Conv2DBackpropFilter" and (parts := _parts(op.inputs[0], forward_op_of(op).inputs[1])):
            made = _filter_gradient(op, parts)
        elif op.type == "Slice" and (parts := _parts_of_gradient(op)):
            made = _part_of_gradient(op, parts)
        if made is not None:
            instead[id(op.outputs[0])] = made
            for new in op.graph.get_operations()[first:]:
                belong_together(new, op)
                order.append(new)
            places = places or {op: place for place, op in enumerate(op.graph.get_operations())}
            latest = max(parts, key=lambda part: places[part.op])
            if not at_once and op.type == "Slice" and parts[op.inputs[1].value_index] is not latest:
                belong_to(made.op, _before(latest.op, places))
            _read_instead(op.outputs[0], made)
    return order, [instead.get(id(result), result) for result in results]


def _filter_gradient(op: Any, parts: Sequence[Any]) -> Any:
    """Makes the gradients of the parts of a filter, and the filter's from them."""
    import tensorflow as tf

    height, width, _, filters = forward_op_of(op).inputs[1].shape
    gradients = [
        clone(op, [part, tf.constant([height, width, part.shape[-1], filters], tf.int32), op.inputs[2]])
        for part in parts
    ]
    return tf.concat([gradient.outputs[0] for gradient in gradients], axis=2)


def _part_of_gradient(cut: Any, parts: Sequence[Any]) -> Any:
    """Makes what a slice cuts from the gradient of a concatenation, from its part of the filter."""
    import tensorflow as tf

    whole, number = cut.inputs[0].op, cut.inputs[1].value_index
    before = sum(part.shape[-1] for part in parts[:number])
    some = tf.slice(whole.inputs[1], [0, 0, before, 0], [-1, -1, parts[number].shape[-1], -1])
    return clone(whole, [tf.shape(parts[number]), some, whole.inputs[2]]).outputs[0]


def _before(op: Any, places: dict[Any, int]) -> Any:
    """Finds the op that made what an op was made of; a bias or a reshape after it belong to it."""

    def of_data(op: Any) -> Any:
        makers = [
            tensor.op for tensor in op.inputs if tensor.shape.rank == 4 and tensor.op.type not in _WEIGHTS
        ]
        return max(makers, key=lambda maker: places.get(maker, -1), default=op)

    while op.type in _ADDED and of_data(op) is not op:
        op = of_data(op)
    return of_data(op)


def _parts(tensor: Any, filters: Any) -> list[Any]:
    """Lists what a convolution's input was concatenated from, in its channels; nothing if it was not."""
    import tensorflow as tf

    op = tensor.op
    if op.type != "ConcatV2" or tensor.shape.rank != 4:
        return []
    parts = list(op.inputs)[:-1]
    if tf.get_static_value(op.inputs[-1]) not in (3, -1) or any(part.shape[-1] is None for part in parts):
        return []
    # A convolution in groups has a filter of fewer channels, which belong to all parts.
    same = filters.shape.is_fully_defined() and filters.shape[2] == sum(part.shape[-1] for part in parts)
    return parts if same and _channels_are_last(tensor) else []


def _channels_are_last(tensor: Any) -> bool:
    return all(
        reader.get_attr("data_format") == b"NHWC" for reader in tensor.consumers() if reader.type == "Conv2D"
    )


def _parts_of_gradient(cut: Any) -> list[Any]:
    """Lists the parts of a concatenation if a slice is cut from its gradient, and that is a convolution's."""
    concat, whole = forward_op_of(cut), cut.inputs[0].op
    if concat is None or concat.type != "ConcatV2" or whole.type != "Conv2DBackpropInput":
        return []
    if cut.inputs[1].op.type != "ConcatOffset":
        return []
    return _parts(concat.outputs[0], whole.inputs[1])


def _read_instead(old: Any, new: Any) -> None:
    for reader in old.consumers():
        for number, tensor in enumerate(reader.inputs):
            if tensor is old:
                set_input(reader, number, new)
