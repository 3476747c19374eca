"""Which variable's value a buffer holds that outlives its step."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from memfit.estimation.recording.trace import Event


class Holding:
    """Finds out whose value buffers hold, step by step.

    Where a weight is still being read, its update goes to a new buffer and the old one is freed later. Which of
    all buffers of that size that is decides where gaps are, and so the peaks of the steps to come. The op that
    moves a variable moves the same one in every step.
    """

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        # By the op, and the occurrence index among its buffers that stay.
        self._first: dict[tuple[str, int], int] = {}
        self._seen: Counter[str] = Counter()
        self._new: dict[int, list[int]] = defaultdict(list)

    def begin_step(self) -> None:
        """Begins a step."""
        self._seen.clear()
        self._new.clear()

    def born(self, index: int, event: Event) -> None:
        """Notes an allocation that outlives its step."""
        asker = (event.op, self._seen[event.op])
        self._seen[event.op] += 1
        if asker not in self._first:
            self._first[asker] = index
            self._new[event.requested].append(index)
        self._known[index] = self._first[asker]

    def died(self, index: int, event: Event) -> None:
        """Notes the death of a variable's first buffer: an op that was not seen to before has moved it."""
        if self._new[event.requested]:
            self._known[index] = self._new[event.requested].pop(0)

    def of_all(self, count: int) -> tuple[int, ...]:
        """Returns for each of `count` allocations whose value it holds, its own number where that is not known."""
        return tuple(self._known.get(index, index) for index in range(count))


def match_remade_state(start: Iterable[Event], state: Sequence[int], alive: dict[int, int]) -> None:
    """Lets the buffers of the optimizer's state, which is made anew as it was before, be what they were then."""
    buffers = iter(state)
    for event in start:
        if event.freed:
            alive.pop(event.address, None)
        elif (index := next(buffers, None)) is not None:
            alive[event.address] = index
