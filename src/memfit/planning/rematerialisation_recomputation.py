"""What has to run again in the backward pass when only some forward tensors are kept."""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from memfit.planning.rematerialisation_trace import Tensor, Trace


@dataclass(frozen=True)
class Recomputation:
    """The part of the backward pass that belongs to one segment of the forward pass.

    Attributes:
        again: Forward ops that run again before it, in order.
        backward: The backward ops of the segment, in order.
    """

    again: tuple[int, ...]
    backward: tuple[int, ...]


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
    return [Recomputation(again(trace, kept, needs(trace, part)), tuple(part)) for part in backward]


def needs(trace: Trace, backward: Sequence[int]) -> list[Tensor]:
    """Lists the forward tensors whose values some backward ops read."""
    found = dict.fromkeys(
        tensor
        for index in backward
        if trace.ops[index].reads_values
        for tensor in trace.ops[index].inputs
        if 0 <= tensor[0] < trace.forward_count
    )
    return list(found)


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


def again(trace: Trace, kept: Collection[Tensor], wanted: Sequence[Tensor]) -> tuple[int, ...]:
    """Lists the forward ops to run again so that all of `wanted` is there, in the order to run them."""
    found: set[int] = set()
    waiting = [tensor for tensor in wanted if not is_available(trace, kept, tensor)]
    while waiting:
        index = waiting.pop()[0]
        if index in found:
            continue
        found.add(index)
        waiting += [tensor for tensor in trace.ops[index].inputs if not is_available(trace, kept, tensor)]
    return tuple(sorted(found))
