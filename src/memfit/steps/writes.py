"""The writes of a traced update, in the order in which they can be done one by one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

# Takes over the buffer of its value, and so never allocates; the others copy a buffer that is shared.
_TAKES_OVER = "AssignVariableOp"
_WRITES = {
    _TAKES_OVER,
    "AssignAddVariableOp",
    "AssignSubVariableOp",
    "ResourceScatterAdd",
    "ResourceScatterSub",
    "ResourceScatterUpdate",
}
_READS = {"ReadVariableOp", "ResourceGather", "VariableShape"}
_THERE_ALREADY = {"Const", "Placeholder"}


class Unchainable(Exception):
    """An update does something else than reading, computing and writing variables."""


@dataclass(frozen=True)
class Group:
    """Writes whose values are all computed before the first of them is done.

    Attributes:
        writes: The ops, those that may allocate first.
        computes: What their values come from, in the order of the trace.
    """

    writes: tuple[Any, ...]
    computes: tuple[Any, ...]


def groups(ops: Sequence[Any]) -> list[Group]:
    """Cuts the ops of an update into the smallest groups that can be done one after the other.

    A write stands alone where its value comes from what the variables hold when its turn is there. Where it was
    computed from an older state of a variable (SGD's momentum moves the weight by what it has just stored),
    the writes since then belong together: done again, it would come out otherwise.

    Args:
        ops: The ops in the order of the trace.

    Raises:
        Unchainable: If a part of the update cannot be looked into, such as a branch.
    """
    place = {op: index for index, op in enumerate(ops)}
    writes = [op for op in ops if op.type in _WRITES]
    written: dict[str, list[int]] = {}
    for op in ops:
        if resources_of(op) and op.type not in _WRITES | _READS:
            raise Unchainable(f"it has an op of type {op.type}")
        if op.type in _WRITES:
            written.setdefault(op.inputs[0].name, []).append(place[op])
    needed = {op: _needed(op, place) for op in writes}
    cut: list[list[Any]] = []
    for op in writes:
        group = [op]
        stale = [
            write
            for read in needed[op]
            for resource in resources_of(read)
            for write in written.get(resource, ())
            if place[read] < write < place[op]
        ]
        while stale and cut and place[cut[-1][-1]] >= min(stale):
            group = cut.pop() + group
        cut.append(group)
    return [_group(members, needed, place, written) for members in cut]


def sources(group: Sequence[Any]) -> list[Any]:
    """The ops among these that read nothing the others compute."""
    inside = set(group)
    return [
        op
        for op in group
        if not inside.intersection([*(tensor.op for tensor in op.inputs), *op.control_inputs])
    ]


def resources_of(op: Any) -> list[str]:
    """The names of the variables' handles that an op takes."""
    return [tensor.name for tensor in op.inputs if tensor.dtype == tf.resource]


def values_of(op: Any) -> list[Any]:
    """What an op takes beside variables."""
    return [tensor for tensor in op.inputs if tensor.dtype != tf.resource]


def _needed(op: Any, place: dict[Any, int]) -> list[Any]:
    """The ops that the value of a write comes from."""
    found: set[Any] = set()
    todo = [*(tensor.op for tensor in values_of(op)), *op.control_inputs]
    while todo:
        other = todo.pop()
        if other in found or other not in place or other.type in _THERE_ALREADY:
            continue
        found.add(other)
        todo += [*(tensor.op for tensor in values_of(other)), *other.control_inputs]
    return sorted(found, key=place.__getitem__)


def _group(
    members: Sequence[Any],
    needed: dict[Any, list[Any]],
    place: dict[Any, int],
    written: dict[str, list[int]],
) -> Group:
    computes = sorted({other for op in members for other in needed[op]}, key=place.__getitem__)
    inside = {place[op] for op in members}
    for read in computes:
        for resource in resources_of(read):
            if any(write in inside and write < place[read] for write in written.get(resource, ())):
                raise Unchainable(f"what {read.name} reads depends on a write of the same group")
    if len({op.inputs[0].name for op in members}) == len(members):
        members = sorted(members, key=lambda op: op.type == _TAKES_OVER)
    return Group(tuple(members), tuple(computes))


def must_run(ops: Iterable[Any]) -> list[Any]:
    """The ops among these that TensorFlow runs even where nothing comes of them, such as checks and branches."""
    return [op for op in ops if op.op_def.is_stateful and op.type not in _READS]


def writing(ops: Iterable[Any]) -> list[Any]:
    """The ops among these that may change a variable."""
    return [op for op in ops if resources_of(op) and op.type not in _READS]
