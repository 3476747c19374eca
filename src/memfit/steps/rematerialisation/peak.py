"""The activation memory of a training step, from its ops in order: what is alive when."""

from collections.abc import Collection, Iterator, Sequence

from memfit.steps.rematerialisation.recomputation import recomputations, source
from memfit.steps.rematerialisation.trace import Tensor, Trace

# TensorFlow gives these ops their input's buffer for the output when nobody else reads it.
IN_PLACE = {
    *("Relu", "Relu6", "ReluGrad", "Relu6Grad", "Add", "AddV2", "AddN", "Sub", "Mul", "RealDiv", "Maximum"),
    *(
        "Minimum",
        "Neg",
        "Exp",
        "Erf",
        "Tanh",
        "Sigmoid",
        "Square",
        "SquaredDifference",
        "SelectV2",
        "Softmax",
    ),
    *("BiasAdd", "Rsqrt", "TanhGrad", "SigmoidGrad", "Elu", "Softplus"),
}
# Kernels side by side have a workspace each, which is not counted: leave some room for that. Those of convolutions'
# gradients are tens of MiB, and use all cores anyway: one at a time.
_ROOM_BESIDE = 0.85
_WITH_WORKSPACE = {
    "Conv2DBackpropFilter",
    "Conv2DBackpropInput",
    "Conv3DBackpropFilterV2",
    "Conv3DBackpropInputV2",
}
# Ops that may run at once; more were not seen to be ready.
_MOST_BESIDE = 8
Buffer = tuple[
    int, int, int
]  # which run (0 the forward pass, n the n-th segment's recomputation), op, output
Step = tuple[int, list[Buffer], list[Buffer]]  # an op, what it reads, what it makes


def predicted_peak(trace: Trace, kept: Collection[Tensor], starts: Sequence[int]) -> int:
    """Adds up what is alive at every op of the step, and returns the largest sum in bytes.

    Weights and inputs are not counted, and neither is a finished weight gradient: the optimizer takes it at
    once.
    """
    return max((total for _, total, _ in alive_at(trace, list(_steps(trace, kept, starts)))), default=0)


def beside(trace: Trace, kept: Collection[Tensor], starts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields each op of the backward pass, in order, with how many of those before it it need not wait for.

    A kernel does not keep all cores busy from its beginning to its end, and small ones use one: stock's step of a
    ViT has 1.7 of two cores at work, and one op at a time 1.2. Where the step is not near its peak there is room
    for what several ops have in memory, and what they would have freed.
    """
    steps = list(_steps(trace, kept, starts))
    alive = list(alive_at(trace, steps))
    room = _ROOM_BESIDE * max((total for _, total, _ in alive), default=0)
    first = sum(1 for _ in _forward_steps(trace))
    for place in range(first, len(steps)):
        more = count = workspaces = 0
        while count < min(_MOST_BESIDE, place - first):
            op = trace.ops[steps[place - count][0]]
            more += sum(op.sizes)
            workspaces += op.type in _WITH_WORKSPACE
            if alive[place - count - 1][2] + more > room or workspaces > 1:
                break
            count += 1
        yield steps[place][0], max(count - 1, 0)


def gradient_bytes(trace: Trace) -> list[int]:
    """For each forward op, the most that gradients alone take while its backward ops run."""
    steps = [step for index in trace.backward if (step := _step(trace, index, 0, ())) is not None]
    only_gradients: list[Step] = [
        (index, [buffer for buffer in reads if buffer[1] >= trace.forward_count], writes)
        for index, reads, writes in steps
    ]
    most = [0] * (trace.forward_count + 1)
    for index, total, _ in alive_at(trace, only_gradients):
        level = trace.ops[index].level
        most[level] = max(most[level], total)
    return most


def alive_at(trace: Trace, steps: Sequence[Step]) -> Iterator[tuple[int, int, int]]:
    """Yields each op with the bytes of all buffers that exist while it runs, and afterwards."""
    last_use = {buffer: place for place, (_, reads, _) in enumerate(steps) for buffer in reads}
    ending: dict[int, list[Buffer]] = {}
    for buffer, place in last_use.items():
        ending.setdefault(place, []).append(buffer)
    alive: dict[Buffer, int] = {}
    total = 0
    for place, (index, _, writes) in enumerate(steps):
        op = trace.ops[index]
        dying = [buffer for buffer in ending.get(place, ()) if buffer in alive]
        for buffer in writes:
            size = op.sizes[buffer[2]]
            may = trace.in_place and op.type in IN_PLACE
            reused = next((old for old in dying if may and alive[old] == size), None)
            if reused is not None:
                dying.remove(reused)
                total -= alive.pop(reused)
            alive[buffer] = size
            total += size
        during = total
        for buffer in [*dying, *(buffer for buffer in writes if buffer not in last_use)]:
            total -= alive.pop(buffer)
        yield index, during, total


def _steps(trace: Trace, kept: Collection[Tensor], starts: Sequence[int]) -> Iterator[Step]:
    """Yields the ops of a training step in order, with the buffers each reads and makes."""
    yield from _forward_steps(trace)
    for number, part in reversed(list(enumerate(recomputations(trace, kept, starts), 1))):
        again = frozenset(index for index in part.order if index < trace.forward_count)
        for index in part.order:
            if (found := _step(trace, index, number, again)) is not None:
                yield found


def _forward_steps(trace: Trace) -> Iterator[Step]:
    for index in range(trace.forward_count):
        if (found := _step(trace, index, 0, ())) is not None:
            yield found


def _step(trace: Trace, index: int, run: int, again: Collection[int]) -> Step | None:
    """Describes one op in a run in which the forward ops `again` run again; None if it makes no buffer."""
    op = trace.ops[index]
    if op.is_alias or not op.reads_values:
        return None
    reads: list[Buffer] = []
    for tensor in op.inputs:
        while tensor[0] >= 0 and trace.ops[tensor[0]].is_alias:
            tensor = source(trace, tensor)
        if tensor[0] >= 0:
            reads.append((run if tensor[0] in again else 0, *tensor))
    return index, reads, [(run if index in again else 0, index, number) for number in range(len(op.sizes))]
