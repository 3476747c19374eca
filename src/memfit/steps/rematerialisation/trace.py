"""A training step as plain data: its forward and backward ops, what each reads, makes and costs."""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from memfit.compat.tf_graphs import Op
from memfit.steps.rematerialisation.backward_order import assign_levels
from memfit.steps.rematerialisation.op_costs import estimate_cost
from memfit.steps.rematerialisation.tensor_sizes import ALIASES, TensorSizes

# The index in the trace of the op that makes a tensor (-1 for an op outside it), and which of its outputs it is.
TensorId = tuple[int, int]
# These read a tensor's shape, not its values: they run at once and keep nothing alive.
_SHAPE_READERS = {"Shape", "ShapeN", "Size", "Rank"}


@dataclass(frozen=True)
class TracedOp:
    """One op of a trace.

    Attributes:
        name: Its name; for a forward op relative to the model's scope, so that it holds for copies of the model.
        type: TensorFlow's name for its kind.
        inputs: What it reads.
        sizes: The bytes of its outputs.
        cost: What running it takes, in bytes moved.
        recomputable: Whether it is a forward op that gives the same when run again, and makes activations.
        level: For a backward op the index of the forward op it belongs to, else its own.
    """

    name: str
    type: str
    inputs: tuple[TensorId, ...]
    sizes: tuple[int, ...]
    cost: float
    recomputable: bool
    level: int

    @cached_property
    def is_alias(self) -> bool:
        """Whether its outputs are its inputs' buffers."""
        return self.type in ALIASES

    @cached_property
    def reads_values(self) -> bool:
        """Whether it reads more of its inputs than their shapes."""
        return self.type not in _SHAPE_READERS


@dataclass(frozen=True)
class Trace:
    """Forward ops, then backward ops, each in an order in which they can run.

    Attributes:
        ops: All of them.
        forward_count: How many are forward ops.
        in_place: Whether ops write over what they are the last to read. XLA's seldom do: a normalisation's gradient
            is there beside its input and the gradient that came in.
    """

    ops: tuple[TracedOp, ...]
    forward_count: int
    in_place: bool = True

    @property
    def forward(self) -> tuple[TracedOp, ...]:
        """The forward ops."""
        return self.ops[: self.forward_count]

    @property
    def backward(self) -> range:
        """The indices of the backward ops."""
        return range(self.forward_count, len(self.ops))

    def size(self, tensor: TensorId) -> int:
        """Returns the bytes of a tensor; none for one that is made outside the trace."""
        return self.ops[tensor[0]].sizes[tensor[1]] if tensor[0] >= 0 else 0

    def name(self, tensor: TensorId) -> str:
        """Returns a tensor's name."""
        return f"{self.ops[tensor[0]].name}:{tensor[1]}"

    def source(self, tensor: TensorId) -> TensorId:
        """Returns the input whose buffer an alias (a reshape, an identity) shows."""
        op = self.ops[tensor[0]]
        return op.inputs[tensor[1]] if op.type == "IdentityN" else op.inputs[0]

    def root(self, tensor: TensorId) -> TensorId:
        """Returns the tensor whose buffer a tensor shows: itself if it is no alias."""
        while tensor[0] >= 0 and self.ops[tensor[0]].is_alias:
            tensor = self.source(tensor)
        return tensor

    def list_needs(self, index: int) -> list[TensorId]:
        """Lists the forward tensors whose values an op reads."""
        op = self.ops[index]
        if not op.reads_values:
            return []
        return [tensor for tensor in op.inputs if 0 <= tensor[0] < self.forward_count]

    def order_segments(self, kept: Collection[TensorId], starts: Sequence[int]) -> list[list[int]]:
        """Works out, segment by segment, what the backward pass needs and what must run again for it.

        Each segment starts from kept tensors alone: it never waits for what another segment recomputed.

        Args:
            kept: The forward tensors that stay in memory until the backward pass has used them.
            starts: Indices of the forward ops at which the second and later segments start, ascending.

        Returns:
            For each segment, in forward order, its backward ops and the forward ops that run again, in the order to
            run them: each forward op as late as the backward ops allow.
        """
        segments: list[list[int]] = [[] for _ in range(len(starts) + 1)]
        for index in self.backward:
            segments[bisect_right(starts, self.ops[index].level)].append(index)
        return [list(self._insert_recomputed(kept, backward)) for backward in segments]

    def is_available(self, kept: Collection[TensorId], tensor: TensorId) -> bool:
        """Says whether a forward tensor is there in the backward pass without running anything again."""
        while tensor[0] >= 0 and tensor not in kept:
            op = self.ops[tensor[0]]
            if not op.recomputable:
                return True
            if not op.is_alias:
                return False
            tensor = self.source(tensor)
        return True

    def _insert_recomputed(self, kept: Collection[TensorId], backward: Sequence[int]) -> Iterator[int]:
        """Yields backward ops, and before each the forward ops that must have run again for it."""
        ran: set[int] = set()
        for index in backward:
            missing: set[int] = set()
            waiting = self.list_needs(index)
            while waiting:
                tensor = waiting.pop()
                if tensor[0] not in ran | missing and not self.is_available(kept, tensor):
                    missing.add(tensor[0])
                    waiting += self.ops[tensor[0]].inputs
            ran |= missing
            yield from sorted(missing)
            yield index


def read_trace(forward: Sequence[Op], backward: Sequence[Op], scope: str, batch_size: int) -> Trace:
    """Turns the ops of a graph into a trace.

    Args:
        backward: The backward ops, in an order in which they can run.
        scope: The name scope that the names of forward ops are relative to.
        batch_size: What the sizes are for where the graph does not know the batch.
    """
    indices = {op: index for index, op in enumerate([*forward, *backward])}
    sizes = TensorSizes(list(indices), batch_size)
    levels = assign_levels(forward, backward)
    of_weights = _find_ops_of_weights(forward)
    ops = [
        TracedOp(
            name=name_in(scope, op),
            type="Identity" if sizes.hands_on(op) else op.type,
            inputs=tuple((indices.get(tensor.op, -1), tensor.value_index) for tensor in op.inputs),
            sizes=tuple(map(sizes.bytes, op.outputs)),
            cost=estimate_cost(op),
            recomputable=index < len(forward) and op not in of_weights and _is_pure(op),
            level=levels[op],
        )
        for op, index in indices.items()
    ]
    return Trace(tuple(ops), len(forward))


def name_in(scope: str, op: Op) -> str:
    """Returns an op's name relative to a scope.

    A tape inside of the forward pass names its ops after those that it differentiates: gradient_tape/scope/name.
    """
    return str(op.name).replace(scope, "", 1)


def _find_ops_of_weights(forward: Sequence[Op]) -> set[Op]:
    """Finds the ops that follow from weights, constants and shapes alone, such as casts: they make no activations.

    Random numbers follow from their seeds alone, but they are as large as activations.
    """
    of_weights: set[Op] = set()
    for op in forward:
        if op.type in ("ReadVariableOp", "Const", *_SHAPE_READERS) or (
            op.inputs
            and not op.type.startswith("Stateless")
            and all(tensor.op in of_weights for tensor in op.inputs)
        ):
            of_weights.add(op)
    return of_weights


def _is_pure(op: Op) -> bool:
    """Says whether running the op once more gives the same and changes nothing."""
    if op.op_def.is_stateful or op.type in ("Placeholder", "Const"):
        return False
    return not any(attr.HasField("func") or attr.list.func for attr in op.node_def.attr.values())
