"""The writes of a traced update, in the order in which they can be done one by one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from memfit.compat.tf_graphs import Op, Tensor, redirect_readers

# Takes over the buffer of its value, and so never allocates; the others copy a buffer that is shared.
_TAKES_OVER = "AssignVariableOp"
WRITES = {
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
        reads: The names of the variables' handles that `computes` take.
    """

    writes: tuple[Op, ...]
    computes: tuple[Op, ...]
    reads: frozenset[str]


def groups(ops: Sequence[Op]) -> list[Group]:
    """Cuts the ops of an update into the smallest groups that can be done one after the other.

    A write stands alone where its value comes from what the variables hold when its turn is there. Where it was
    computed from an older state of a variable (SGD's momentum moves the weight by what it has just stored),
    the writes since then belong together: done again, it would come out otherwise.

    Raises:
        Unchainable: If a part of the update cannot be looked into, such as a branch.
    """
    update = _Trace(ops)
    cut: list[list[Op]] = []
    for op in update.writes:
        group = [op]
        stale = update.find_stale(op)
        while stale and cut and update.place[cut[-1][-1]] >= min(stale):
            group = cut.pop() + group
        cut.append(group)
    return [update.make_group(members) for members in cut]


def sources(ops: Sequence[Op]) -> list[Op]:
    """The ops among these that wait for no other of them."""
    inside = set(ops)
    return [op for op in ops if inside.isdisjoint([*(tensor.op for tensor in op.inputs), *op.control_inputs])]


def resources_of(op: Op) -> list[str]:
    """The names of the variables' handles that an op takes."""
    return [tensor.name for tensor in op.inputs if tensor.dtype == tf.resource]


def values_of(op: Op) -> list[Tensor]:
    """What an op takes beside variables."""
    return [tensor for tensor in op.inputs if tensor.dtype != tf.resource]


def bypass_bundles(ops: Sequence[Op]) -> None:
    """Lets what reads a bundle of tensors read the tensors themselves.

    Keras's optimizer sums gradients over replicas, which without replicas is one op that takes them all: every
    write would wait for every gradient.
    """
    for op in ops:
        if op.type == "IdentityN":
            for old, new in zip(op.outputs, list(op.inputs), strict=True):
                redirect_readers(old, new)


class _Trace:
    """What the ops of an update take, looked up once: TensorFlow makes these lists anew at every question."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self.place = {op: index for index, op in enumerate(ops)}
        self.writes = [op for op in ops if op.type in WRITES]
        self._resources: dict[Op, list[str]] = {}
        self._before: dict[Op, list[Op]] = {}
        self._written: dict[str, list[int]] = {}
        for op, place in self.place.items():
            inputs = [(tensor, tensor.dtype == tf.resource) for tensor in op.inputs]
            self._resources[op] = [tensor.name for tensor, is_resource in inputs if is_resource]
            self._before[op] = [
                *(tensor.op for tensor, is_resource in inputs if not is_resource),
                *op.control_inputs,
            ]
            if self._resources[op] and op.type not in WRITES | _READS:
                raise Unchainable(f"it has an op of type {op.type}")
            if op.type in WRITES:
                self._written.setdefault(self._resources[op][0], []).append(place)
        self._needed = {op: self._find_needed(op) for op in self.writes}

    def find_stale(self, write: Op) -> list[int]:
        """Returns the places of writes to what was read for this write, since it was read."""
        return [
            other
            for read in self._needed[write]
            for resource in self._resources[read]
            for other in self._written.get(resource, ())
            if self.place[read] < other < self.place[write]
        ]

    def make_group(self, members: Sequence[Op]) -> Group:
        """Puts writes, and what they are computed from, into an order in which they can be done."""
        computes = sorted({other for op in members for other in self._needed[op]}, key=self.place.__getitem__)
        inside = {self.place[op] for op in members}
        for read in computes:
            for resource in self._resources[read]:
                if any(w in inside and w < self.place[read] for w in self._written.get(resource, ())):
                    raise Unchainable(f"what {read.name} reads depends on a write of the same group")
        if len({self._resources[op][0] for op in members}) == len(members):
            members = sorted(members, key=lambda op: op.type == _TAKES_OVER)
        return Group(
            writes=tuple(members),
            computes=tuple(computes),
            reads=frozenset(name for op in computes for name in self._resources[op]),
        )

    def _find_needed(self, write: Op) -> list[Op]:
        """Returns the ops that the value of a write comes from, in the order of the trace."""
        needed: set[Op] = set()
        waiting = list(self._before[write])
        while waiting:
            op = waiting.pop()
            if op not in needed and op in self.place and op.type not in _THERE_ALREADY:
                needed.add(op)
                waiting += self._before[op]
        return sorted(needed, key=self.place.__getitem__)


def must_run(ops: Iterable[Op]) -> list[Op]:
    """The ops among these that TensorFlow runs even where nothing comes of them, such as checks and branches."""
    return [op for op in ops if op.op_def.is_stateful and op.type not in _READS]


def writing(ops: Iterable[Op]) -> list[Op]:
    """The ops among these that may change a variable."""
    return [op for op in ops if resources_of(op) and op.type not in _READS]


def find_written(graph: Any) -> set[str]:
    """Returns the names of a graph's placeholders of variables that its ops may write, in loops and branches, too.

    Args:
        graph: A `GraphDef`, as a traced function's graph gives it.
    """
    library = {function.signature.name: function for function in graph.library.function}
    placeholders = {
        node.name for node in graph.node if node.attr["dtype"].type == tf.resource.as_datatype_enum
    }
    return _find_written(graph.node, placeholders, library)


def _find_written(nodes: Iterable[Any], resources: set[str], library: Mapping[str, Any]) -> set[str]:
    written: set[str] = set()
    for node in nodes:
        inputs = [name.partition(":")[0] for name in node.input if not name.startswith("^")]
        taken = resources.intersection(inputs)
        if not taken or node.op in _READS:
            continue
        names = [f.name for value in node.attr.values() for f in (value.func, *value.list.func) if f.name]
        called = [library[name] for name in names if name in library]
        if not called:
            written |= taken
        for function in called:
            arguments = function.signature.input_arg
            of_variables = {each.name for each in arguments if each.type == tf.resource.as_datatype_enum}
            inside = _find_written(function.node_def, of_variables, library)
            passed = inputs[len(inputs) - len(arguments) :]  # a branch's condition comes before its arguments
            written.update(name for name, each in zip(passed, arguments, strict=True) if each.name in inside)
    return written
