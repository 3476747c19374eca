"""Rewriting a backward pass so that it reads recomputed tensors instead of stored ones."""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from memfit.budgets.errors import InvalidInput
from memfit.planning.rematerialisation_recomputation import Recomputation, is_available, recomputations
from memfit.planning.rematerialisation_segments import Segments
from memfit.planning.rematerialisation_trace import Tensor, Trace, read
from memfit.training.rematerialisation_private_apis import barrier, clone, compiles_with_xla, set_input


def check_names(forward: Sequence[Any], scope: str, segments: Segments) -> None:
    """Refuses segments that were chosen for another model.

    Raises:
        InvalidInput: If the model has no op of a name that the segments refer to.
    """
    names = {op.name.removeprefix(scope) for op in forward}
    for name in (*segments.starts, *(tensor.rpartition(":")[0] for tensor in segments.kept)):
        if name not in names:
            raise InvalidInput(
                "Segments can be applied only to the model they were chosen for, or to a copy with the same layer names",
                received=name,
                remedy="Choose segments for this model with memfit.planning.rematerialisation.choose",
            )


def recompute_in_backward_pass(
    forward: Sequence[Any],
    backward: Sequence[Any],
    scope: str,
    segments: Segments,
    *,
    incoming: Sequence[Any],
    wanted: Sequence[Any],
) -> None:
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
    """
    trace = read(forward, backward, scope)
    graph_ops = [*forward, *backward]
    place = {op.name: index for index, op in enumerate(trace.forward)}
    kept = {
        (place[name], int(output)) for name, _, output in (tensor.rpartition(":") for tensor in segments.kept)
    }
    starts = sorted(place[name] for name in segments.starts)
    useful = _useful(trace, graph_ops, wanted)
    after = list(incoming)
    parts = list(enumerate(recomputations(trace, kept, starts)))
    for number, part in reversed(parts):
        part = replace(part, backward=tuple(index for index in part.backward if index in useful))
        if not part.backward:
            continue
        if part.again:
            entering = _entering(trace, part, lambda level, n=number: bisect_right(starts, level) > n)
            triggers = {id(tensor): tensor for tensor in [*after, *(_first(graph_ops[i]) for i in entering)]}
            _rewrite(trace, graph_ops, kept, part, list(triggers.values()))
        after = [_first(graph_ops[index]) for index in _last(trace, part)]


def _rewrite(
    trace: Trace,
    graph_ops: Sequence[Any],
    kept: Collection[Tensor],
    part: Recomputation,
    after: Sequence[Any],
) -> None:
    """Copies the forward ops of one segment, to run after some gradients, and lets the backward ops read them."""
    import tensorflow as tf

    def inputs(index: int) -> list[tuple[Tensor, Any]]:
        return list(zip(trace.ops[index].inputs, graph_ops[index].inputs, strict=True))

    copied = set(part.again)
    given = {key: tensor for index in part.again for key, tensor in inputs(index) if key[0] not in copied}
    start: list[Any] = []
    if compiles_with_xla(graph_ops[0].graph):
        # XLA drops control dependencies and merges equal computations, but cannot see through a barrier.
        held = [key for key, tensor in given.items() if _carries_values(tensor)]
        given.update(zip(held, barrier([*(given[key] for key in held), *after]), strict=False))
    else:
        with tf.control_dependencies(list(after)):
            start = [tf.no_op(name="recomputed/start")]
    copies: dict[int, Any] = {}
    for index in part.again:
        read_now = [
            copies[key[0]].outputs[key[1]] if key[0] in copies else given.get(key, tensor)
            for key, tensor in inputs(index)
        ]
        copies[index] = clone(graph_ops[index], read_now, after=start)
    for index in part.backward:
        if trace.ops[index].reads_values:
            for number, (key, _) in enumerate(inputs(index)):
                if key[0] in copies and not is_available(trace, kept, key):
                    set_input(graph_ops[index], number, copies[key[0]].outputs[key[1]])


def _carries_values(tensor: Any) -> bool:
    """Says whether a tensor is data; shapes and axes must stay constants that XLA sees when it compiles."""
    return tensor.op.type != "Const" and tensor.dtype.name not in ("int32", "int64", "resource", "variant")


def _useful(trace: Trace, graph_ops: Sequence[Any], wanted: Sequence[Any]) -> set[int]:
    """Finds the backward ops that lead to wanted gradients; the others must stay dead code."""
    place = {op: index for index, op in enumerate(graph_ops)}
    found: set[int] = set()
    waiting = [place[op] for op in wanted if op in place]
    while waiting:
        index = waiting.pop()
        if index >= trace.forward_count and index not in found:
            found.add(index)
            waiting += [producer for producer, _ in trace.ops[index].inputs if producer >= 0]
    return found


def _entering(trace: Trace, part: Recomputation, is_later: Any) -> list[int]:
    """Lists the backward ops of later segments whose gradients this segment's backward ops read."""
    producers = dict.fromkeys(producer for index in part.backward for producer, _ in trace.ops[index].inputs)
    return [
        producer
        for producer in producers
        if producer >= trace.forward_count and is_later(trace.ops[producer].level)
    ]


def _last(trace: Trace, part: Recomputation) -> list[int]:
    """Lists the backward ops of a segment that no other op of it waits for."""
    read = {producer for index in part.backward for producer, _ in trace.ops[index].inputs}
    return [index for index in part.backward if index not in read and trace.ops[index].sizes]


def _first(op: Any) -> Any:
    return op.outputs[0]
