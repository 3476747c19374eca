"""The activation memory of a training step, from its ops in order: what is alive when."""

from collections.abc import Collection, Iterator, Sequence

from memfit.planning.rematerialisation_recomputation import is_available, recomputations, source
from memfit.planning.rematerialisation_trace import Tensor, Trace

# TensorFlow gives these ops their input's buffer for the output when nobody else reads it.
_IN_PLACE = {
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
Buffer = tuple[int, int, int]  # which run (0 the forward pass, n the n-th recomputation), op, output


def predicted_peak(trace: Trace, kept: Collection[Tensor], starts: Sequence[int]) -> int:
    """Adds up what is alive at every op of the step, and returns the largest sum in bytes.

    Weights and inputs are not counted, and neither is a finished weight gradient: the optimizer takes it at
    once.
    """
    steps = list(_steps(trace, kept, starts))
    last_use: dict[Buffer, int] = {}
    for place, (_, reads, _) in enumerate(steps):
        for buffer in reads:
            last_use[buffer] = place
    alive: dict[Buffer, int] = {}
    total = peak = 0
    ending: dict[int, list[Buffer]] = {}
    for buffer, place in last_use.items():
        ending.setdefault(place, []).append(buffer)
    for place, (index, reads, writes) in enumerate(steps):
        op = trace.ops[index]
        dying = [buffer for buffer in ending.get(place, ()) if buffer in alive]
        for number, buffer in enumerate(writes):
            size = op.sizes[number]
            reused = next(
                (old for old in dying if op.type in _IN_PLACE and old in reads and alive[old] == size), None
            )
            if reused is not None:
                dying.remove(reused)
                total -= alive.pop(reused)
            alive[buffer] = size
            total += size
        peak = max(peak, total)
        for buffer in [*dying, *(buffer for buffer in writes if buffer not in last_use)]:
            total -= alive.pop(buffer, 0)
    return peak


def _steps(
    trace: Trace, kept: Collection[Tensor], starts: Sequence[int]
) -> Iterator[tuple[int, list[Buffer], list[Buffer]]]:
    """Yields the ops of a step in order, with the buffers each reads and makes."""

    def buffer(tensor: Tensor, run: int, ran: Collection[int]) -> Buffer | None:
        """Finds the buffer behind a tensor, as seen in a run in which the ops `ran` run again."""
        while tensor[0] >= 0:
            op = trace.ops[tensor[0]]
            if not op.is_alias:
                return (run if tensor[0] in ran else 0, *tensor)
            tensor = source(trace, tensor)
        return None

    def step(index: int, run: int, ran: Collection[int]) -> tuple[int, list[Buffer], list[Buffer]] | None:
        op = trace.ops[index]
        if op.is_alias or not op.reads_values:
            return None
        reads = [found for tensor in op.inputs if (found := buffer(tensor, run, ran)) is not None]
        writes = [(run if index in ran else 0, index, number) for number in range(len(op.sizes))]
        return index, reads, writes

    for index in range(trace.forward_count):
        if (found := step(index, 0, ())) is not None:
            yield found
    parts = recomputations(trace, kept, starts)
    for run, part in reversed(list(enumerate(parts, 1))):
        ran = {index for index in part.again if not _is_there(trace, kept, index)}
        for index in (*part.again, *part.backward):
            if (found := step(index, run, ran)) is not None:
                yield found


def _is_there(trace: Trace, kept: Collection[Tensor], index: int) -> bool:
    return all(is_available(trace, kept, (index, number)) for number in range(len(trace.ops[index].sizes)))
