"""Rewriting a backward pass so that it reads recomputed tensors instead of stored ones."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import tensorflow as tf

from memfit.compat.tf_graphs import (
    Op,
    Tensor,
    clone,
    compiles_with_xla,
    redirect_readers,
    run_after,
    set_input,
)
from memfit.errors import InvalidInput
from memfit.steps.rematerialisation.backward_order import order_backward_ops
from memfit.steps.rematerialisation.rewrite.xla import XlaOrder, XlaStorage, build_flag, make_wait
from memfit.steps.rematerialisation.trace import TensorId, Trace, name_in, read_trace
from memfit.steps.segments import Segments


def check_names(forward: Sequence[Op], scope: str, segments: Segments) -> None:
    """Refuses segments that were chosen for another model.

    Raises:
        InvalidInput: If the model does not have the ops that the segments refer to.
    """
    check_known({name_in(scope, op) for op in forward}, segments)


def check_known(names: Collection[str], segments: Segments) -> None:
    """Refuses segments that refer to other forward ops than those with these names.

    Raises:
        InvalidInput: If one of theirs is not among them.
    """
    wanted = [*(tensor.rpartition(":")[0] for tensor in segments.kept), *segments.starts]
    missing = [name for name in wanted if name not in names]
    if missing:
        raise InvalidInput(
            "Segments hold for the model they were chosen for, and for its copies with the same layer names",
            received=missing[0],
            remedy="Make a plan for this model: memfit.plan(model, batch_size, memory)",
        )


def recompute_in_backward_pass(
    forward: Sequence[Op],
    backward: Sequence[Op],
    scope: str,
    segments: Segments,
    *,
    incoming: Sequence[Tensor],
    wanted: Sequence[Op],
) -> Callable[[Tensor], Tensor]:
    """Makes the backward ops of a graph read copies of forward ops that run when the gradient gets there.

    The forward pass is left as it is: random numbers are drawn once, statistics move once. Only pure ops are
    run again, with the inputs they had.

    Returns:
        What gives for each gradient the tensor to read instead of it.
    """
    compiled = compiles_with_xla(forward[0].graph)
    backward = order_backward_ops(forward, split_sums(backward), wanted, by_branch=compiled)
    trace = read_trace(forward, backward, scope, segments.batch_size)
    indices = {op.name: index for index, op in enumerate(trace.forward)}
    names = (tensor.rpartition(":") for tensor in segments.kept)
    kept = frozenset((indices[name], int(output)) for name, _, output in names)
    starts = sorted(indices[name] for name in segments.starts)
    step = _Step(trace, [*forward, *backward], kept, starts)
    if compiled:
        return _rewrite_for_xla(step, incoming, wanted)
    chain = _Chain(incoming)
    for order in reversed(trace.order_segments(kept, starts)):
        _rewrite_in_chain(step, order, chain)
    return lambda gradient: gradient


def split_sums(backward: Sequence[Op]) -> list[Op]:
    """Lets backward ops add up three gradients and more one by one, from left to right, as AddN does.

    Where a graph seems to want nearly all memory, TensorFlow's memory optimizer gives an AddN two more buffers:
    a step that was recorded where there was room took less than in the memory it was recorded for.

    Returns:
        The backward ops in an order in which they can run; those that nothing reads any more are still there.
    """
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


@dataclass(frozen=True)
class _Step:
    """A step to rewrite: its trace, the same ops as TensorFlow has them, and the choice of what to keep."""

    trace: Trace
    graph_ops: Sequence[Op]
    kept: frozenset[TensorId]
    starts: Sequence[int]

    def read(self, index: int, copies: dict[int, list[Tensor]]) -> list[Tensor]:
        """Lists what an op is to read: copies where there are some and nothing was kept."""
        op = self.trace.ops[index]
        return [
            copies[key[0]][key[1]]
            if key[0] in copies and op.reads_values and not self.trace.is_available(self.kept, key)
            else tensor
            for key, tensor in zip(op.inputs, self.graph_ops[index].inputs, strict=True)
        ]

    def is_forward(self, index: int) -> bool:
        """Says whether an op is one of the forward pass."""
        return index < self.trace.forward_count


class _Chain:
    """Ops that each wait for the one before: executors run whatever is ready, and would compute all again early."""

    def __init__(self, incoming: Sequence[Tensor]) -> None:
        self._before: list[Op] = [tensor.op for tensor in incoming]
        self._of_biases: set[Op] = set()

    def append(self, op: Op) -> None:
        """Lets an op run next."""
        producers = {tensor.op for tensor in op.inputs}
        if not producers:  # a constant would not be one any more if it waited
            return
        for before in self._before:
            if before not in producers:
                run_after(op, before)
        # oneDNN merges a bias's gradient into the filter's: what waits for the one would then wait for the
        # other, which may wait for it in turn. So nothing waits for a bias's gradient, or what follows from it.
        if op.type == "BiasAddGrad":
            self._of_biases.add(op)
        elif not self._follows_from_bias(op):
            self._before = [op]

    def pass_by(self, op: Op) -> None:
        """Lets an op run when it can."""
        self._follows_from_bias(op)

    def _follows_from_bias(self, op: Op) -> bool:
        """Whether an op reads a bias's gradient, or what follows from it, and so is not waited for either."""
        follows = any(tensor.op in self._of_biases for tensor in op.inputs)
        if follows:
            self._of_biases.add(op)
        return follows


def _rewrite_in_chain(step: _Step, order: Sequence[int], chain: _Chain) -> None:
    """Copies the forward ops that a segment runs again, lets its backward ops read the copies, and chains both."""
    copies: dict[int, list[Tensor]] = {}
    for index in order:
        op = step.graph_ops[index]
        inputs = step.read(index, copies)
        if step.is_forward(index):
            op = clone(op, inputs)
            copies[index] = list(op.outputs)
        else:
            _replace_inputs(op, inputs)
        traced = step.trace.ops[index]
        if traced.reads_values and not traced.is_alias:
            chain.append(op)
        else:  # as a reshape
            chain.pass_by(op)


def _rewrite_for_xla(
    step: _Step, incoming: Sequence[Tensor], wanted: Sequence[Op]
) -> Callable[[Tensor], Tensor]:
    """Does the same for XLA, which drops control dependencies and merges equal computations.

    There the copies get a data dependency: the first ones of a segment wait for the gradients that enter it.
    """
    trace, graph_ops = step.trace, step.graph_ops
    storage = XlaStorage(trace, step.kept)
    xla_order = XlaOrder(trace, graph_ops, wanted)
    after = list(incoming)
    for number, order in reversed(list(enumerate(trace.order_segments(step.kept, step.starts)))):
        entering = [
            index
            for index in _list_producers(trace, order)
            if not step.is_forward(index) and bisect_right(step.starts, trace.ops[index].level) > number
        ]
        flag = build_flag([*after, *(graph_ops[index].outputs[0] for index in entering)])
        _rewrite_segment_for_xla(step, order, flag, storage, xla_order)
        read = set(_list_producers(trace, order))
        last = [index for index in order if not step.is_forward(index) and index not in read]
        after = [graph_ops[index].outputs[0] for index in last if trace.ops[index].sizes] or after
    return xla_order.find_latest


def _rewrite_segment_for_xla(
    step: _Step, order: Sequence[int], flag: Tensor, storage: XlaStorage, xla_order: XlaOrder
) -> None:
    copies: dict[int, list[Tensor]] = {}
    for index in order:
        op, traced = step.graph_ops[index], step.trace.ops[index]
        inputs = step.read(index, copies)
        if traced.reads_values:
            inputs = [
                storage.store_kept(key, tensor) if tensor is old else tensor
                for key, tensor, old in zip(traced.inputs, inputs, op.inputs, strict=True)
            ]
        xla_order.wait(index, inputs)
        if step.is_forward(index):
            if not any(key[0] in copies for key in traced.inputs):
                make_wait(inputs, flag)
            copies[index] = storage.store_copy(index, clone(op, inputs))
        else:
            _replace_inputs(op, inputs)


def _replace_inputs(op: Op, inputs: Sequence[Tensor]) -> None:
    for number, (old, new) in enumerate(zip(op.inputs, inputs, strict=True)):
        if new is not old:
            set_input(op, number, new)


def _list_producers(trace: Trace, order: Sequence[int]) -> list[int]:
    """Lists the ops whose outputs some ops read."""
    return list(dict.fromkeys(producer for index in order for producer, _ in trace.ops[index].inputs))
