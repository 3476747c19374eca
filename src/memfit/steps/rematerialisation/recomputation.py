"""What has to run again in the backward pass when only some forward tensors are kept, and when."""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence

from memfit.steps.rematerialisation.trace import TensorId, Trace


def order_segments(trace: Trace, kept: Collection[TensorId], starts: Sequence[int]) -> list[list[int]]:
    """Works out, segment by segment, what the backward pass needs and what must run again for it.

    Each segment starts from kept tensors alone: it never waits for what another segment recomputed.

    Args:
        kept: The forward tensors that stay in memory until the backward pass has used them.
        starts: Indices of the forward ops at which the second and later segments start, ascending.

    Returns:
        For each segment, in forward order, its backward ops and the forward ops that run again, in the order to run
        them: each forward op as late as the backward ops allow.
    """
    segments: list[list[int]] = [[] for _ in range(len(starts) + 1)]
    for index in trace.backward:
        segments[bisect_right(starts, trace.ops[index].level)].append(index)
    return [list(_insert_recomputed(trace, kept, backward)) for backward in segments]


def is_available(trace: Trace, kept: Collection[TensorId], tensor: TensorId) -> bool:
    """Says whether a forward tensor is there in the backward pass without running anything again."""
    while tensor[0] >= 0 and tensor not in kept:
        op = trace.ops[tensor[0]]
        if not op.recomputable:
            return True
        if not op.is_alias:
            return False
        tensor = trace.source(tensor)
    return True


def _insert_recomputed(trace: Trace, kept: Collection[TensorId], backward: Sequence[int]) -> Iterator[int]:
    """Yields backward ops, and before each the forward ops that must have run again for it."""
    ran: set[int] = set()
    for index in backward:
        missing: set[int] = set()
        waiting = trace.list_needs(index)
        while waiting:
            tensor = waiting.pop()
            if tensor[0] not in ran | missing and not is_available(trace, kept, tensor):
                missing.add(tensor[0])
                waiting += trace.ops[tensor[0]].inputs
        ran |= missing
        yield from sorted(missing)
        yield index
