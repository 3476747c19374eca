"""Rewriting a backward pass so that it reads recomputed tensors instead of stored ones."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from typing import Any

from memfit.compat.tf_graphs import clone, compiles_with_xla, materialised, run_after, set_input
from memfit.errors import InvalidInput
from memfit.steps.rematerialisation.recomputation import (
    Recomputation,
    is_available,
    recomputations,
    source,
)
from memfit.steps.rematerialisation.segments import Segments
from memfit.steps.rematerialisation.tiles import without_tiles
from memfit.steps.rematerialisation.trace import Tensor, Trace, in_order, read
from memfit.steps.rematerialisation.xla_order import ALONE, Order, smallest
from memfit.steps.waiting import never


def check_names(forward: Sequence[Any], scope: str, segments: Segments) -> None:
    """Refuses segments that were chosen for another model.

    Raises:
        InvalidInput: If the model does not have the ops that the segments refer to.
    """
    names = {op.name.removeprefix(scope) for op in forward}
    wanted = [*(tensor.rpartition(":")[0] for tensor in segments.kept), *segments.starts]
    missing = [name for name in wanted if name not in names]
    if missing:
        raise InvalidInput(
            "Segments hold for the model they were chosen for, and for its copies with the same layer names",
            received=missing[0],
            remedy="Make a plan for this model: memfit.plan(model, batch_size, memory)",
        )


def recompute_in_backward_pass(
    forward: Sequence[Any],
    backward: Sequence[Any],
    scope: str,
    segments: Segments,
    *,
    incoming: Sequence[Any],
    wanted: Sequence[Any],
) -> Callable[[Any], Any]:
    """Makes the backward ops of a graph read copies of forward ops that run when the gradient gets there.

    The forward pass is left as it is: random numbers are drawn once, statistics move once. Only pure ops are
    run again, with the inputs they had, so what they give is the same to the last bit.

    Args:
        forward: The graph's forward ops, in the order they were made.
        backward: The graph's backward ops, in the order they were made.
        scope: The name scope of the forward ops.
        segments: What to keep, and where segments start.
        incoming: The gradients of the forward pass's outputs.
        wanted: The ops that give the gradients of the weights.

    Returns:
        What gives for each gradient the tensor to read instead of it.
    """
    compiled = compiles_with_xla(forward[0].graph)
    backward = without_tiles(backward)
    backward = in_order(forward, backward, wanted, by_branch=compiled)
    trace = read(forward, backward, scope, segments.batch_size)
    graph_ops = [*forward, *backward]
    place = {op.name: index for index, op in enumerate(trace.forward)}
    kept = {
        (place[name], int(output)) for name, _, output in (tensor.rpartition(":") for tensor in segments.kept)
    }
    starts = sorted(place[name] for name in segments.starts)
    line = None if compiled else _Line(incoming)
    stored = _Stored(trace, kept) if compiled else None
    order = Order(trace, graph_ops, wanted) if compiled else None
    after = list(incoming)
    for number, part in reversed(list(enumerate(recomputations(trace, kept, starts)))):
        # XLA drops control dependencies and merges equal computations, so there the copies get a data dependency.
        entering = _entering(trace, part, lambda level, n=number: bisect_right(starts, level) > n)
        flag = None
        if compiled:
            # One element of what XLA computes elementwise or joins would wait for little of it, so it is stored
            # first. So is the flag: each copy would have what it waited for in memory till it is computed itself.
            awaited = [*after, *(graph_ops[index].outputs[0] for index in entering)]
            flag = materialised(never([materialised(tensor) for tensor in awaited]))
        _rewrite(trace, graph_ops, kept, part, flag, line, stored, order)
        after = [graph_ops[index].outputs[0] for index in _last(trace, part)] or after
    return (lambda gradient: gradient) if order is None else order.latest


def _rewrite(
    trace: Trace,
    graph_ops: Sequence[Any],
    kept: Collection[Tensor],
    part: Recomputation,
    flag: Any,
    line: "_Line | None",
    stored: "_Stored | None",
    order: Order | None,
) -> None:
    """Copies the forward ops that one segment runs again, and lets the backward ops read the copies.

    Args:
        flag: Under XLA the boolean that the copies wait for.
        line: Otherwise the line in which the ops run.
        stored: Under XLA what gives kept tensors.
        order: Under XLA what keeps the ops in order.
    """
    copies: dict[int, Any] = {}
    for index in part.order:
        op = graph_ops[index]
        read_now = [
            copies[key[0]][key[1]]
            if key[0] in copies and trace.ops[index].reads_values and not is_available(trace, kept, key)
            else stored(key, tensor)
            if stored is not None and trace.ops[index].reads_values
            else tensor
            for key, tensor in zip(trace.ops[index].inputs, op.inputs, strict=True)
        ]
        if order is not None:
            order.wait(index, read_now)
        if index < trace.forward_count:
            if flag is not None and not any(key[0] in copies for key in trace.ops[index].inputs):
                _guard(read_now, flag)
            op = clone(op, read_now)
            copies[index] = list(op.outputs) if stored is None else stored.again(index, op)
        else:
            for number, (old, new) in enumerate(zip(op.inputs, read_now, strict=True)):
                if new is not old:
                    set_input(op, number, new)
        makes_something = trace.ops[index].reads_values and not trace.ops[index].is_alias
        if line is not None and makes_something:  # a reshape runs when it can
            line.append(op)


class _Stored:
    """The kept tensors, and of those that are computed again the convolved and multiplied ones, stored under XLA.

    XLA fuses what is computed elementwise into all ops that read it, those of the backward pass included. Then what
    a kept tensor was computed from is in memory until the backward pass: a convolution's output and the skip beside
    each block's output (ResNet50: 1.8 GiB instead of 1.3). So it is with what is computed again: a convolution
    reads it from memory, and others compute it once more (1.33 GiB instead of 1.14).
    """

    def __init__(self, trace: Trace, kept: Collection[Tensor]) -> None:
        self._trace, self._kept = trace, kept
        self._made: dict[Tensor, Any] = {}
        self._read = {key for op in trace.ops if op.type in ALONE for key in op.inputs}

    def again(self, index: int, copy: Any) -> list[Any]:
        """Returns what to read of a forward op that runs again."""
        elementwise = copy.type not in ALONE
        return [
            materialised(tensor)
            if elementwise and (index, number) in self._read and tensor.dtype.is_floating
            else tensor
            for number, tensor in enumerate(copy.outputs)
        ]

    def __call__(self, key: Tensor, tensor: Any) -> Any:
        """Returns the tensor to read for an input: the stored one where it is kept, or an alias of one that is."""
        root = key
        while root[0] >= 0 and root not in self._kept and self._trace.ops[root[0]].is_alias:
            root = source(self._trace, root)
        if root not in self._kept or not tensor.dtype.is_floating:
            return tensor
        if key not in self._made:
            self._made[key] = materialised(tensor)
        return self._made[key]


class _Line:
    """Ops in a line: each waits for the one before, so that what one frees is free for the next.

    Args:
        incoming: What has to be there before the first op.
    """

    def __init__(self, incoming: Sequence[Any]) -> None:
        self._before = [tensor.op for tensor in incoming]
        self._of_biases: set[Any] = set()

    def append(self, op: Any) -> None:
        """Lets an op run next."""
        producers = {tensor.op for tensor in op.inputs}
        for before in self._before if producers else ():
            if before not in producers:
                run_after(op, before)
        # oneDNN merges a bias's gradient into the filter's: what waits for the one would then wait for the
        # other, which may wait for it in turn. So nothing waits for a bias's gradient, or what follows from it.
        if op.type == "BiasAddGrad" or producers & self._of_biases:
            self._of_biases.add(op)
        elif producers:  # a constant would not be one any more if it waited
            self._before = [op]


def _guard(inputs: list[Any], flag: Any) -> None:
    """Lets the smallest input that carries data wait for the flag; shapes must stay constants for XLA."""
    import tensorflow as tf

    number = smallest(inputs)
    if number is None:
        return
    tensor = inputs[number]
    if tensor.dtype == tf.bool:
        inputs[number] = tf.logical_or(tensor, flag)
    elif tensor.dtype.is_floating:
        inputs[number] = tensor + tf.where(
            flag, tf.constant(float("nan"), tensor.dtype), tf.zeros([], tensor.dtype)
        )
    else:
        inputs[number] = tensor + tf.cast(flag, tensor.dtype)


def _entering(trace: Trace, part: Recomputation, is_later: Any) -> list[int]:
    """Lists the backward ops of later segments whose gradients this segment's backward ops read."""
    producers = dict.fromkeys(producer for index in part.order for producer, _ in trace.ops[index].inputs)
    return [
        producer
        for producer in producers
        if producer >= trace.forward_count and is_later(trace.ops[producer].level)
    ]


def _last(trace: Trace, part: Recomputation) -> list[int]:
    """Lists the backward ops of a segment that no other op of it waits for."""
    read = {producer for index in part.order for producer, _ in trace.ops[index].inputs}
    return [
        index
        for index in part.order
        if index >= trace.forward_count and index not in read and trace.ops[index].sizes
    ]
