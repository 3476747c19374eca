"""What has to run again in the backward pass when only some forward tensors are kept, and when."""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from memfit.steps.rematerialisation.trace import Tensor, Trace


@dataclass(frozen=True)
class Recomputation:
    """The part of the backward pass that belongs to one segment of the forward pass.

    Attributes:
        order: Backward ops, and forward ops that run again, in the order to run them: each forward op as late as
            the backward ops allow.
    """

    order: tuple[int, ...]


def recomputations(trace: Trace, kept: Collection[Tensor], starts: Sequence[int]) -> list[Recomputation]:
    """Works out, segment by segment, what the backward pass needs and what must run again for it.

    Each segment starts from kept tensors alone: it never waits for what another segment recomputed.

    Args:
        trace: The forward and backward ops.
        kept: The forward tensors that stay in memory until the backward pass has used them.
        starts: Indices of the forward ops at which the second and later segments start, ascending.

    Returns:
        One item for each segment, in forward order.
    """
    backward: list[list[int]] = [[] for _ in range(len(starts) + 1)]
    for index in trace.backward:
        backward[bisect_right(starts, trace.ops[index].level)].append(index)
    return [Recomputation(tuple(_in_order(trace, kept, part))) for part in backward]


def needs(trace: Trace, index: int) -> list[Tensor]:
    """Lists the forward tensors whose values an op reads."""
    op = trace.ops[index]
    return [tensor for tensor in op.inputs if 0 <= tensor[0] < trace.forward_count] if op.reads_values else []


def is_available(trace: Trace, kept: Collection[Tensor], tensor: Tensor) -> bool:
    """Says whether a forward tensor is there in the backward pass without running anything again."""
    while tensor[0] >= 0 and tensor not in kept:
        op = trace.ops[tensor[0]]
        if not op.recomputable:
            return True
        if not op.is_alias:
            return False
        tensor = source(trace, tensor)
    return True


def source(trace: Trace, tensor: Tensor) -> Tensor:
    """Returns the input whose buffer an alias (a reshape, an identity) shows."""
    op = trace.ops[tensor[0]]
    return op.inputs[tensor[1]] if op.type == "IdentityN" else op.inputs[0]


def _in_order(trace: Trace, kept: Collection[Tensor], backward: Sequence[int]) -> Iterator[int]:
    """Yields backward ops, and before each the forward ops that must have run again for it."""
    ran: set[int] = set()
    for index in backward:
        missing: set[int] = set()
        waiting = needs(trace, index)
        while waiting:
            tensor = waiting.pop()
            if tensor[0] not in ran | missing and not is_available(trace, kept, tensor):
                missing.add(tensor[0])
                waiting += trace.ops[tensor[0]].inputs
        ran |= missing
        yield from sorted(missing)
        yield index
