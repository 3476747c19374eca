"""The order in which the ops of a backward pass run, so that what they read is gone soon."""

from collections.abc import Collection, Iterable, Sequence

import tensorflow as tf

from memfit.compat.tf_graphs import Op, Tensor, forward_op_of
from memfit.steps.rematerialisation.tensor_sizes import leaves_input_as_it_is

# Backward ops that make little of a large tensor.
_SUMS = {"Sum", "BiasAddGrad", "DepthwiseConv2dNativeBackpropFilter"}


def order_backward_ops(
    forward: Sequence[Op], backward: Sequence[Op], wanted: Sequence[Op], *, by_branch: bool = False
) -> list[Op]:
    """Orders the backward ops that lead to wanted ops: against the forward order, weights' gradients first.

    A weight's gradient is often the last to read an activation. The gradient that flows on does not read it, so
    it comes after, when the activation is gone. So do sums: what reads the same tensor after them may overwrite it.
    Ops that lead nowhere are dead code, which nothing may wait for.

    Keras calls the layers of two branches by turns. By branch, each branch's gradient is done before the next one
    begins, so that only one of them has its gradients in memory.
    """
    useful = _find_sources(wanted, set(backward))
    levels = assign_levels(_order_by_branch(forward) if by_branch else forward, backward)
    groups: dict[int, list[Op]] = {}
    readers: dict[Op, list[Op]] = {}
    for op in (op for op in backward if op in useful):
        groups.setdefault(levels[op], []).append(op)
        for other in list_awaited(op):
            readers.setdefault(other, []).append(op)
    order: list[Op] = []
    for level in sorted(groups, reverse=True):
        group = groups[level]
        flowing: set[Op] = set()
        for op in reversed(group):
            if any(levels[reader] < level or reader in flowing for reader in readers.get(op, ())):
                flowing.add(op)
        ending = _find_sources([op for op in group if op not in flowing], set(group))
        order += [op for op in group if op in ending]
        order += _order_sums_first([op for op in group if op not in ending])
    return order


def assign_levels(forward: Sequence[Op], backward: Sequence[Op]) -> dict[Op, int]:
    """Says for each op which forward op it belongs to: a backward op to the earliest it follows from."""
    indices = {op: index for index, op in enumerate(forward)}
    levels: dict[Op, int] = {}
    for op in backward:
        own = indices.get(forward_op_of(op), len(forward))
        levels[op] = min([own, *(levels[other] for other in list_awaited(op) if other in levels)])
    return {**indices, **levels}


def list_awaited(op: Op) -> list[Op]:
    """Lists the ops that an op waits for, whether it reads what they make or not.

    A part of the gradient of a squared difference reads only what the forward pass made, but TensorFlow lets it
    wait for the gradient that comes in.
    """
    return [*(tensor.op for tensor in op.inputs), *op.control_inputs]


def list_gradient_ops(gradients: Sequence[Tensor | None]) -> list[Op]:
    """Lists the ops that make gradients: tensors, slices of tensors, or None."""
    tensors = [
        tf.nest.flatten(gradient, expand_composites=True) for gradient in gradients if gradient is not None
    ]
    return [tensor.op for parts in tensors for tensor in parts]


def _order_sums_first(ops: Sequence[Op]) -> list[Op]:
    """Orders ops so that those come first that add up large tensors, and what they need."""
    order: dict[Op, None] = {}
    for op in ops:
        if op.type in _SUMS and not leaves_input_as_it_is(op):
            needed = _find_sources([op], set(ops))
            order |= dict.fromkeys(other for other in ops if other in needed)
    return list(order | dict.fromkeys(ops))


def _order_by_branch(forward: Sequence[Op]) -> list[Op]:
    """Orders forward ops so that all that leads to one input of an op comes before what only the next one needs."""
    indices = {op: index for index, op in enumerate(forward)}
    order: dict[Op, None] = {}
    waiting = list(forward)  # the last op and all that leads to it, then what is left
    while waiting:
        op = waiting[-1]
        missing = {tensor.op for tensor in op.inputs if tensor.op in indices and tensor.op not in order}
        if op in order or not missing:
            order[waiting.pop()] = None
        else:
            waiting += sorted(missing, key=indices.__getitem__, reverse=True)
    return list(order)


def _find_sources(wanted: Iterable[Op], possible: Collection[Op]) -> set[Op]:
    """Finds the ops among the possible ones that some wanted ops follow from, themselves included."""
    sources: set[Op] = set()
    waiting = [op for op in wanted if op in possible]
    while waiting:
        op = waiting.pop()
        if op not in sources:
            sources.add(op)
            waiting += [other for other in list_awaited(op) if other in possible]
    return sources
