"""Refining a choice of what to keep against the exact count of what is alive at every op.

The dynamic programming keeps whatever is alive at a cut, and knows a segment only by its largest moment. Below the
memory it reaches, single changes do better: not to keep one tensor, to forget what was recomputed once more between
two uses, to keep one again. Each is counted op by op, as it will run.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from memfit.planning.rematerialisation_options import THRESHOLDS, Choices
from memfit.planning.rematerialisation_peak import IN_PLACE
from memfit.planning.rematerialisation_trace import Tensor

Buffer = tuple[
    int, int, int
]  # which run (0 the forward pass, n the n-th segment's recomputation), op, output
# Changes that a refinement makes at most, and how many it looks at for each: a count takes 2 to 10 milliseconds.
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


class Step(NamedTuple):
    """One op as it runs: what it reads and makes of large buffers. There are millions: a tuple is made quickly."""

    op: int
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]


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
        self.trace, self.choices = trace, choices
        limit = choices.small_bytes
        self._writes = [
            ()
            if op.is_alias or not op.reads_values
            else tuple((index, number) for number, size in enumerate(op.sizes) if size > limit)
            for index, op in enumerate(trace.ops)
        ]
        self._reads = [
            tuple(
                dict.fromkeys(
                    root
                    for root in map(choices.root, op.inputs)
                    if root[0] >= 0 and trace.ops[root[0]].sizes[root[1]] > limit
                )
            )
            if op.reads_values and not op.is_alias
            else ()
            for op in trace.ops
        ]
        forward = trace.forward_count
        # What of an op's inputs may have to be computed again.
        self._again = [
            tuple(tensor for tensor in reads if tensor[0] < forward and trace.ops[tensor[0]].recomputable)
            for reads in self._reads
        ]
        # Every op as it runs where nothing is computed again.
        self._plain = [
            Step(index, tuple((0, *tensor) for tensor in reads), tuple((0, *tensor) for tensor in writes))
            for index, (reads, writes) in enumerate(zip(self._reads, self._writes, strict=True))
        ]
        busy = [step for step in self._plain if step.reads or step.writes]
        self._forward = [step for step in busy if step.op < forward]
        self._backward = [(step.op, trace.ops[step.op].level) for step in busy if step.op >= forward]
        self._in_place = [op.type in IN_PLACE for op in trace.ops]
        self.counted = 0  # steps of all choices so far, for those who have to end

    def count(self, choice: Choice) -> Count:
        """Counts a choice op by op."""
        steps = self._steps(choice)
        self.counted += len(steps)
        again = sum(
            self.trace.ops[step.op].cost
            for step in steps
            if step.op < self.trace.forward_count and step.writes and step.writes[0][0]
        )
        return Count(steps, [total for total, _ in self._alive(steps)], again)

    def idle(self, count: Count, place: int) -> list[tuple[int, Tensor]]:
        """Lists forward tensors that are alive at a step and not used by it: cheap ones first, then large ones."""
        now = count.steps[place]
        _, alive = next(islice(self._alive(count.steps), place, None))
        found = [
            (run, (index, number))
            for run, index, number in alive
            if index < self.trace.forward_count and (run, index, number) not in (*now.reads, *now.writes)
        ]
        return sorted(
            found,
            key=lambda item: (bisect_right(THRESHOLDS, self._per_byte(item[1])), -self._size(item[1]), item),
        )

    def dearest(self, count: Count) -> list[Tensor]:
        """Lists the tensors that are computed again, the dearest a byte first."""
        again = {buffer[1:] for step in count.steps for buffer in step.writes if buffer[0]}
        return sorted(again, key=lambda tensor: (-self._per_byte(tensor), tensor))

    def _size(self, tensor: Tensor) -> int:
        return self.trace.ops[tensor[0]].sizes[tensor[1]]

    def _per_byte(self, tensor: Tensor) -> float:
        return self.trace.ops[tensor[0]].cost / max(1, self._size(tensor))

    def _steps(self, choice: Choice) -> list[Step]:
        kept = choice.kept
        steps = self._forward.copy()
        parts: list[list[int]] = [[] for _ in range(len(choice.starts) + 1)]
        for index, level in self._backward:
            parts[bisect_right(choice.starts, level)].append(index)
        for run in range(len(parts), 0, -1):
            ran: set[int] = set()
            for index in parts[run - 1]:
                missing: set[int] = set()
                waiting = [tensor for tensor in self._again[index] if tensor[0] not in ran]
                while waiting:
                    tensor = waiting.pop()
                    made = tensor[0]
                    if made not in missing and made not in ran and tensor not in kept:
                        missing.add(made)
                        waiting += self._again[made]
                ran |= missing
                steps += [self._step(again, run, ran, kept) for again in sorted(missing)]
                steps.append(self._step(index, run, ran, kept))
        return steps

    def _step(self, index: int, run: int, ran: set[int], kept: Collection[Tensor]) -> Step:
        plain = self._plain[index]
        reads, writes = plain.reads, plain.writes
        if any(tensor[0] in ran for tensor in self._again[index]):
            reads = tuple(
                [
                    (run if tensor[0] in ran and tensor not in kept else 0, *tensor)
                    for tensor in self._reads[index]
                ]
            )
        if index in ran:
            writes = tuple([(run, *tensor) for tensor in self._writes[index]])
        return plain if reads is plain.reads and writes is plain.writes else Step(index, reads, writes)

    def _alive(self, steps: list[Step]) -> Iterator[tuple[int, dict[Buffer, int]]]:
        ops = self.trace.ops
        last = {buffer: place for place, step in enumerate(steps) for buffer in step.reads}
        alive: dict[Buffer, int] = {}
        total = 0
        for place, (index, reads, writes) in enumerate(steps):
            dying = [buffer for buffer in reads if last[buffer] == place and buffer in alive]
            for buffer in writes:
                size = ops[index].sizes[buffer[2]]
                if dying and self._in_place[index]:
                    for old in dying:
                        if alive[old] == size:
                            dying.remove(old)
                            total -= alive.pop(old)
                            break
                alive[buffer] = size
                total += size
            yield total, alive
            for buffer in dying:
                total -= alive.pop(buffer)
            for buffer in writes:
                if buffer not in last:
                    total -= alive.pop(buffer)


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
    level = ledger.trace.ops[count.steps[place].op].level
    for run, tensor in ledger.idle(count, place):
        if run == 0:
            if tensor in choice.kept:
                yield choice.without(tensor)
            continue
        # Recomputed before, and needed again later: forget it in between.
        uses = (
            ledger.trace.ops[step.op].level
            for step in count.steps[place + 1 :]
            if (run, *tensor) in step.reads
        )
        for start in dict.fromkeys((level, *(use + 1 for use in islice(uses, 1)))):
            if 0 < start <= level and start not in choice.starts:
                yield choice.starting(start)


def _double_changes(ledger: Ledger, choice: Choice, count: Count) -> Iterator[Choice]:
    """Yields changes that do not keep a tensor, and forget what its recomputation leaves behind."""
    place = count.largest()
    level = ledger.trace.ops[count.steps[place].op].level
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
