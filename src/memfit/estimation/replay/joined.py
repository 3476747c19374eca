"""What of a step in micro-batches is about the whole batch: what the parts leave, and all that is made of it.

A step is recorded with two micro-batches, whatever the number that a batch will have. The gradient of an embedding
is a list of rows, one for every look-up of a sample, and the rows of all parts are kept for the update.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from memfit.estimation.recording.step import JOINED
from memfit.estimation.replay.events import allocation_of, is_birth
from memfit.estimation.replay.naming import has_scope

if TYPE_CHECKING:
    from memfit.estimation.replay.script import Allocation


def find_joined(
    allocations: Sequence["Allocation"], order: Sequence[int], ends: Sequence[int]
) -> frozenset[int]:
    """Returns the numbers of the allocations that grow with the whole batch, of all steps.

    Args:
        allocations: All of them.
        order: Births and deaths.
        ends: Where in that the preparation and each step end.
    """
    found: set[int] = set()
    for begin, end in pairwise(ends):
        alive: dict[int, str] = {}
        joining = False
        for code in order[begin:end]:
            number = allocation_of(code)
            op = allocations[number].op
            if not is_birth(code):
                alive.pop(number, None)
                continue
            if not joining and has_scope(op, JOINED):
                joining = True
                # What the last part alone has left is about to go.
                left = Counter(alive.values())
                found.update(number for number, op in alive.items() if left[op] > 1)
            if op and joining:
                found.add(number)
            elif op:
                alive[number] = op
    return frozenset(found)


def sum_joined(allocations: Sequence["Allocation"], step: Iterable[int]) -> float:
    """Returns the bytes per sample of what the parts of a step have left, as it is joined."""
    born = (allocations[code] for code in step if is_birth(code))
    return float(sum(each.polynomial[1] for each in born if has_scope(each.op, JOINED)))
