"""Replaying recorded steps at another batch size through the model of TensorFlow's allocator."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

from memfit.estimation.bfc import BFC, Chunk
from memfit.estimation.naming import Names
from memfit.estimation.recording import Recording
from memfit.estimation.sizes import Asker, Bytes, askers, size_of, sizes_by_asker
from memfit.estimation.trace import Event

# A microsecond each: another batch size is to take tens of milliseconds, however many steps were recorded.
_EVENTS, _LEAST_STEPS = 32_000, 5


@dataclass(frozen=True, slots=True)
class Allocation:
    """One allocation of a step.

    Attributes:
        op: Name of the op that asked for it; a variable's path for what is there before the first step.
        layer: The layer the op belongs to, "" for loss, optimizer and inputs.
        kind: One of `naming.KINDS`.
        phase: "forward", "backward", "update" or "".
        shape: The tensor's shape at the recorded batch, as text.
        polynomial: Bytes as constant, per sample and per pair of samples.
        birth: Position in the replay's order.
        death: Position at which it is freed, or None.
    """

    op: str
    layer: str
    kind: str
    phase: str
    shape: str
    polynomial: Bytes
    birth: int
    death: int | None

    def bytes(self, batch: int) -> int:
        """Returns the bytes it asks for at a batch size."""
        constant, per_sample, per_pair = self.polynomial
        return max(0, round(constant + batch * (per_sample + batch * per_pair)))


@dataclass(frozen=True)
class Script:
    """What is replayed: allocations, and the order of births (n) and deaths (-1 - n) of allocation n.

    Attributes:
        allocations: All of them, in order of birth.
        before: How many are there before the first step.
        random: Which of those have random initial values; drawing them takes two more buffers of their size.
        order: Births and deaths.
        ends: Position in `order` at which the preparation and each step end.
        threads: The thread of every position in `order`.
    """

    allocations: tuple[Allocation, ...]
    before: int
    random: frozenset[int]
    order: tuple[int, ...]
    ends: tuple[int, ...]
    threads: tuple[int, ...]

    def sizes(self, batch: int) -> list[int]:
        """Returns the bytes of every allocation at a batch size."""
        constant, per_sample, per_pair = self._polynomials
        found: list[int] = (
            (constant + batch * (per_sample + batch * per_pair)).round().clip(0).astype(int).tolist()
        )
        return found

    @cached_property
    def _polynomials(self) -> Any:
        import numpy as np

        return np.array([allocation.polynomial for allocation in self.allocations]).T


def script_of(recording: Recording, optimizer: str) -> Script:
    """Turns a recording into what can be replayed at any batch size."""
    names = Names(recording.layers, optimizer)
    layer_of, phase_of = cache(names.layer), cache(names.phase)  # every step has the same ops
    all_steps = (*recording.smaller, *recording.steps, *recording.compiled)
    sizes = sizes_by_asker(all_steps, recording.shapes)
    found: list[tuple[str, str, str, str, str, Bytes, int]] = []  # allocations, but for their deaths
    order: list[int] = []
    threads: list[int] = []
    alive: dict[int, int] = {}
    waiting: dict[int, list[int]] = defaultdict(list)  # variables that a step may replace, by their size
    random = set()
    for variable in recording.variables:
        if variable.random:
            random.add(len(found))
        waiting[variable.bytes].append(len(found))
        found.append((variable.name, "", variable.kind, "", "", (variable.bytes, 0, 0), len(found)))
    before = len(found)

    def born(event: Event, polynomial: Bytes, kind: str) -> None:
        alive[event.address] = len(found)
        order.append(len(found))
        threads.append(event.thread)
        found.append(
            (event.op, layer_of(event.op), kind, phase_of(event.op), event.shape, polynomial, len(order))
        )

    for event in recording.start:
        if not event.freed:
            born(event, (event.requested, 0, 0), "optimizer state")
        elif event.address in alive:
            order.append(-1 - alive.pop(event.address))
            threads.append(event.thread)
    ends = [len(order)]
    count = max(_LEAST_STEPS, _EVENTS // max(1, len(recording.steps[-1].events)))
    for step in recording.steps[:count]:
        outliving = _outliving(step.events)
        who: dict[int, Asker] = {id(event): asker for event, asker in askers(step.events)}
        for event in step.events:
            if not event.freed:
                kind = names.kind(event.op, event.region, outlives_step=id(event) in outliving)
                born(event, size_of(event, who[id(event)], step.batch, sizes, recording.shapes), kind)
                continue
            index = alive.pop(event.address, None)
            if index is None and waiting[event.requested]:
                index = waiting[event.requested].pop()
            if index is not None:
                order.append(-1 - index)
                threads.append(event.thread)
        ends.append(len(order))
    deaths = {-1 - code: position for position, code in enumerate(order, 1) if code < 0}
    allocations = tuple(Allocation(*fields, deaths.get(index)) for index, fields in enumerate(found))
    return Script(allocations, before, frozenset(random), tuple(order), tuple(ends), tuple(threads))


def _outliving(step: Sequence[Event]) -> set[int]:
    alive: dict[int, int] = {}
    for event in step:
        if event.freed:
            alive.pop(event.address, None)
        else:
            alive[event.address] = id(event)
    return set(alive.values())


@dataclass(frozen=True)
class Moment:
    """A moment of a replay: every living allocation with the bytes it asked for and those it occupies."""

    position: int
    living: tuple[tuple[Allocation, int, int], ...]


def peaks(script: Script, batch: int) -> list[tuple[int, int]]:
    """Returns (bytes, position) of the peak of each replayed step."""
    sizes = script.sizes(batch)
    allocator, chunks = prepared(script, sizes, 2**62)
    found = []
    allocate, release, order = allocator.allocate, allocator.release, script.order
    for begin, end in pairwise(script.ends):
        allocator.peak, where = allocator.in_use, begin
        highest = allocator.peak
        for position in range(begin, end):
            code = order[position]
            if code < 0:
                release(chunks[-1 - code])
            else:
                chunks[code] = allocate(sizes[code])
                if allocator.in_use > highest:
                    highest, where = allocator.in_use, position
        found.append((highest, where))
    return found


def moment(script: Script, batch: int, position: int) -> Moment:
    """Returns what is alive just after a position of the replay."""
    sizes = script.sizes(batch)
    allocator, chunks = prepared(script, sizes, 2**62)
    living = dict.fromkeys(range(script.before))
    for code in script.order[: position + 1]:
        if code < 0:
            living.pop(-1 - code, None)
        else:
            living[code] = None
    for code in script.order[script.ends[0] : position + 1]:
        if code < 0:
            allocator.release(chunks[-1 - code])
        else:
            chunks[code] = allocator.allocate(sizes[code])
    return Moment(position, tuple((script.allocations[n], sizes[n], chunks[n][0]) for n in living))


def course(script: Script, batch: int, step: int) -> list[Counter[str]]:
    """Returns the bytes in use by kind after every event of a step; the parts of kinds add up to the whole."""
    sizes = script.sizes(batch)
    allocator, chunks = prepared(script, sizes, 2**62)
    kinds = [allocation.kind for allocation in script.allocations]
    sums: Counter[str] = Counter()

    def add(index: int, sign: int) -> None:
        sums[kinds[index]] += sign * sizes[index]
        sums["rounding"] += sign * (chunks[index][0] - sizes[index])

    for index in chunks:
        if not chunks[index][-1]:
            add(index, 1)
    begin, end = script.ends[step], script.ends[step + 1]
    found = []
    for position in range(script.ends[0], end):
        code = script.order[position]
        if code < 0:
            add(-1 - code, -1)
            allocator.release(chunks[-1 - code])
        else:
            chunks[code] = allocator.allocate(sizes[code])
            add(code, 1)
        if position >= begin:
            found.append(sums.copy())
    return found


def prepared(script: Script, sizes: list[int], limit: int) -> tuple[BFC, dict[int, Chunk]]:
    """Lays out what is there before the first step, in the order and with the gaps that Keras leaves."""
    allocator = BFC(limit)
    chunks: dict[int, Chunk] = {}
    for index in range(script.before):
        # A random initial value is drawn, scaled and shifted, each into a buffer of its own.
        drawn = [allocator.allocate(sizes[index]) for _ in range(2)] if index in script.random else []
        chunks[index] = allocator.allocate(sizes[index])
        for chunk in reversed(drawn):
            allocator.release(chunk)
    for code in script.order[: script.ends[0]]:
        if code < 0:
            allocator.release(chunks[-1 - code])
        else:
            chunks[code] = allocator.allocate(sizes[code])
    return allocator, chunks
