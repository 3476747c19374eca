"""Refining a choice of what to keep against the exact count of what is alive at every op.

The dynamic programming keeps whatever is alive at a cut, and knows a segment only by its largest moment. Below the
memory it reaches, single changes do better: not to keep one tensor, to forget what was recomputed once more between
two uses, to keep one again. Each is counted op by op, as it will run.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from memfit.steps.rematerialisation.options import THRESHOLDS, Choices
from memfit.steps.rematerialisation.peak import IN_PLACE
from memfit.steps.rematerialisation.trace import Tensor

# A large tensor's number, and above these bits in which run it is made: 0 the forward pass, n the n-th segment's
# recomputation. Numbers, because millions are compared.
Buffer = int
_BITS = 24
_TENSOR = (1 << _BITS) - 1
# One op as it runs: its index, the large buffers that it reads, those that it makes.
Step = tuple[int, tuple[Buffer, ...], tuple[Buffer, ...]]
# Changes that a refinement makes at most, and how many it looks at for each: a count takes 1 to 3 milliseconds.
_CHANGES, _TRIED = 60, 12
# Tensors that it tries to keep again, the dearest first.
_KEPT_AGAIN = 60


@dataclass(frozen=True)
class Choice:
    """Large tensors kept, and the forward ops at which segments start."""

    kept: frozenset[Tensor]
    starts: tuple[int, ...]

    def without(self, tensor: Tensor) -> "Choice":
        return Choice(self.kept - {tensor}, self.starts)

    def keeping(self, tensor: Tensor) -> "Choice":
        return Choice(self.kept | {tensor}, self.starts)

    def starting(self, place: int) -> "Choice":
        return Choice(self.kept, tuple(sorted({*self.starts, place})))

    def not_starting(self, place: int) -> "Choice":
        return Choice(self.kept, tuple(start for start in self.starts if start != place))


@dataclass(frozen=True)
class Count:
    """What a choice takes: the bytes alive at every step, and the cost of what runs again."""

    steps: list[Step]
    totals: list[int]
    cost: float

    def within(self, aim: float) -> bool:
        return max(self.totals, default=0) <= aim

    def above(self, aim: float) -> float:
        """Adds up what is above an aim, over all steps: less of it is nearer, though the largest be the same."""
        return sum(total - aim for total in self.totals if total > aim)

    def largest(self) -> int:
        """The place of the step at which most is alive."""
        return max(range(len(self.totals)), key=self.totals.__getitem__)


class Ledger:
    """Counts what is alive, among the large tensors only: a tenth of the time that counting all takes."""

    def __init__(self, choices: Choices) -> None:
        trace = choices.trace
        self.trace = trace
        self._numbers: dict[Tensor, int] = {}
        for index, op in enumerate(trace.ops):
            for number, size in enumerate(op.sizes):
                if size > choices.small_bytes:
                    self._numbers[index, number] = len(self._numbers)
        self._tensors = list(self._numbers)
        # What is only looked at for its shape, or is another tensor's memory, takes none.
        counts = [op.reads_values and not op.is_alias for op in trace.ops]
        self._bytes = [self._size(tensor) if counts[tensor[0]] else 0 for tensor in self._tensors]
        # Every op as it runs where nothing is computed again.
        self._plain: list[Step] = []
        for index, op in enumerate(trace.ops):
            roots = dict.fromkeys(map(choices.root, op.inputs)) if counts[index] else ()
            outputs = [(index, number) for number in range(len(op.sizes))] if counts[index] else ()
            self._plain.append((index, self._large(roots), self._large(outputs)))
        busy = [step for step in self._plain if step[1] or step[2]]
        self._forward = [step for step in busy if step[0] < trace.forward_count]
        self._backward = [(step, trace.ops[step[0]].level) for step in busy if step[0] >= trace.forward_count]
        self._recomputable = [
            index < trace.forward_count and trace.ops[index].recomputable for index, _ in self._tensors
        ]
        self._in_place = [trace.in_place and op.type in IN_PLACE for op in trace.ops]
        self.counted = 0  # steps of all choices so far, for those who have to end

    def count(self, choice: Choice) -> Count:
        """Counts a choice op by op."""
        steps, again = self._steps(choice)
        self.counted += len(steps)
        return Count(steps, self._totals(steps), sum(self.trace.ops[index].cost for index in again))

    def idle(self, count: Count, place: int) -> list[tuple[int, Tensor]]:
        """Lists forward tensors that are alive at a step and not used by it: cheap ones first, then large ones."""
        made = {buffer for _, _, writes in count.steps[:place] for buffer in writes}
        later = {buffer for _, reads, _ in count.steps[place + 1 :] for buffer in reads}
        found = [
            (buffer >> _BITS, tensor)
            for buffer in made & later.difference(count.steps[place][1])
            if (tensor := self._tensors[buffer & _TENSOR])[0] < self.trace.forward_count
        ]
        return sorted(
            found,
            key=lambda item: (bisect_right(THRESHOLDS, self._per_byte(item[1])), -self._size(item[1]), item),
        )

    def dearest(self, count: Count) -> list[Tensor]:
        """Lists the tensors that are computed again, the dearest a byte first."""
        made = {buffer for _, _, writes in count.steps for buffer in writes}
        again = {self._tensors[buffer & _TENSOR] for buffer in made if buffer > _TENSOR}
        return sorted(again, key=lambda tensor: (-self._per_byte(tensor), tensor))

    def buffer(self, run: int, tensor: Tensor) -> Buffer:
        """Returns the buffer that a large tensor has in a run."""
        return self._numbers[tensor] | run << _BITS

    def _large(self, tensors: Iterable[Tensor]) -> tuple[int, ...]:
        return tuple(self._numbers[tensor] for tensor in tensors if tensor in self._numbers)

    def _size(self, tensor: Tensor) -> int:
        return self.trace.ops[tensor[0]].sizes[tensor[1]]

    def _per_byte(self, tensor: Tensor) -> float:
        return self.trace.ops[tensor[0]].cost / max(1, self._size(tensor))

    def _steps(self, choice: Choice) -> tuple[list[Step], list[int]]:
        """Returns what runs, in order, and the forward ops that run again."""
        plain, tensors = self._plain, self._tensors
        # What the backward pass finds missing, unless it ran again in the same segment.
        gone = self._recomputable.copy()
        for number in self._large(choice.kept):
            gone[number] = False
        parts: list[list[Step]] = [[] for _ in range(len(choice.starts) + 1)]
        for step, level in self._backward:
            parts[bisect_right(choice.starts, level)].append(step)
        steps = self._forward.copy()
        again: list[int] = []
        for run in range(len(parts), 0, -1):
            ran: set[int] = set()
            mark = run << _BITS
            for step in parts[run - 1]:
                waiting = [tensor for tensor in step[1] if gone[tensor]]
                if not waiting:
                    steps.append(step)
                    continue
                missing: set[int] = set()
                while waiting:
                    made = tensors[waiting.pop()][0]
                    if made not in ran and made not in missing:
                        missing.add(made)
                        waiting += [tensor for tensor in plain[made][1] if gone[tensor]]
                ran |= missing
                for index in sorted(missing):
                    _, reads, writes = plain[index]
                    marked = tuple([tensor | mark if gone[tensor] else tensor for tensor in reads])
                    steps.append((index, marked, tuple([tensor | mark for tensor in writes])))
                    if writes:
                        again.append(index)
                marked = tuple([tensor | mark if gone[tensor] else tensor for tensor in step[1]])
                steps.append((step[0], marked, step[2]))
        return steps, again

    def _totals(self, steps: list[Step]) -> list[int]:
        """Adds up what is alive at every step."""
        bytes_, in_place = self._bytes, self._in_place
        last = {buffer: place for place, (_, reads, _) in enumerate(steps) for buffer in reads}
        ending: dict[int, list[int]] = {}
        for buffer, place in last.items():
            ending.setdefault(place, []).append(bytes_[buffer & _TENSOR])
        totals: list[int] = []
        total = 0
        for place, (index, _, writes) in enumerate(steps):
            dying = ending.get(place, [])
            unread = 0
            for buffer in writes:
                size = bytes_[buffer & _TENSOR]
                if in_place[index] and size in dying:
                    dying.remove(size)
                else:
                    total += size
                if buffer not in last:
                    unread += size
            totals.append(total)
            if dying or unread:
                total -= sum(dying) + unread
        return totals


def refined(ledger: Ledger, choice: Choice, aim: float) -> Choice | None:
    """Changes a choice until it stays below `aim` bytes, then lets go of recomputation that it does not need.

    Returns:
        The choice; None if no change leads on.
    """
    lower = _lowered(ledger, choice, aim)
    return None if lower is None else _cheapened(ledger, lower, aim)


def _lowered(ledger: Ledger, choice: Choice, aim: float) -> Choice | None:
    count = ledger.count(choice)
    for _ in range(_CHANGES):
        above = count.above(aim)
        if above <= 0:
            return choice
        found = None
        for changes in (_changes(ledger, choice, count), _double_changes(ledger, choice, count)):
            found = found or _best(ledger, list(islice(changes, _TRIED)), count, aim)
        if found is None:
            return None
        choice, count = found
    return None


def _best(
    ledger: Ledger, changes: Sequence[Choice], before: Count, aim: float
) -> tuple[Choice, Count] | None:
    """Picks the change that brings most for what it costs; what costs nothing comes first."""
    best: tuple[float, Choice, Count] | None = None
    for change in changes:
        after = ledger.count(change)
        gain = before.above(aim) - after.above(aim)
        worth = gain / max(after.cost - before.cost, 1.0)
        if gain > 0 and (best is None or worth > best[0]):
            best = worth, change, after
    return None if best is None else (best[1], best[2])


def _changes(ledger: Ledger, choice: Choice, count: Count) -> Iterator[Choice]:
    """Yields changes that take something away from the largest moment, the cheapest for its bytes first."""
    place = count.largest()
    level = ledger.trace.ops[count.steps[place][0]].level
    for run, tensor in ledger.idle(count, place):
        if run == 0:
            if tensor in choice.kept:
                yield choice.without(tensor)
            continue
        # Recomputed before, and needed again later: forget it in between.
        buffer = ledger.buffer(run, tensor)
        uses = (
            ledger.trace.ops[index].level for index, reads, _ in count.steps[place + 1 :] if buffer in reads
        )
        for start in dict.fromkeys((level, *(use + 1 for use in islice(uses, 1)))):
            if 0 < start <= level and start not in choice.starts:
                yield choice.starting(start)


def _double_changes(ledger: Ledger, choice: Choice, count: Count) -> Iterator[Choice]:
    """Yields changes that do not keep a tensor, and forget what its recomputation leaves behind."""
    place = count.largest()
    level = ledger.trace.ops[count.steps[place][0]].level
    for run, tensor in ledger.idle(count, place):
        if run == 0 and tensor in choice.kept:
            for start in dict.fromkeys((tensor[0] + 1, tensor[0], level)):
                if 0 < start <= level and start not in choice.starts:
                    yield choice.without(tensor).starting(start)


def _cheapened(ledger: Ledger, choice: Choice, aim: float) -> Choice:
    """Keeps again what costs most to recompute, and joins segments, as far as that stays below the aim."""
    count = ledger.count(choice)

    def tried(change: Choice) -> None:
        nonlocal choice, count
        found = ledger.count(change)
        if found.cost < count.cost and max(found.totals) <= aim:
            choice, count = change, found

    for tensor in ledger.dearest(count)[:_KEPT_AGAIN]:
        tried(choice.keeping(tensor))
    for start in choice.starts:
        tried(choice.not_starting(start))
    return choice
