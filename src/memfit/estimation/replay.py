"""Replaying recorded steps at another batch size through the model of TensorFlow's allocator."""

import gc
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain, pairwise
from random import Random
from typing import Any, NamedTuple

from memfit.estimation.bfc import BFC, OWNER, SIZE, Chunk, rounded
from memfit.estimation.compiled import Compiled
from memfit.estimation.naming import Names
from memfit.estimation.recording import Recording, Step
from memfit.estimation.sizes import Asker, Bytes, askers, size_of, sizes_by_asker
from memfit.estimation.trace import Event

# The peak is the largest of so many steps.
STEPS = 5
# Three quarters of a microsecond each: another batch size is to take tens of milliseconds.
_EVENTS = 56_000
_MOST_RUNS = 16
# `ConstantFoldingOptions::max_constant_size_in_bytes` of TensorFlow's runtime.
_LARGEST_CONSTANT = 10 * 2**20
# What TensorFlow knows a variable by.
_HANDLE = 200
# A run of fewer shows only the first step and what is like it.
_LEAST_STEPS = 3


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
        constants: Which of those TensorFlow has computed ahead, which it does not do with large ones.
        order: Births and deaths.
        ends: Position in `order` at which the preparation and each step end.
        threads: The thread of every position in `order`.
    """

    allocations: tuple[Allocation, ...]
    before: int
    random: frozenset[int]
    constants: tuple[int, ...]
    order: tuple[int, ...]
    ends: tuple[int, ...]
    threads: tuple[int, ...]

    def sizes(self, batch: int) -> Any:
        """Returns the bytes of every allocation at a batch size, as an array."""
        constant, per_sample, per_pair = self._polynomials
        found = (constant + batch * (per_sample + batch * per_pair)).round().clip(0).astype(int)
        for index in self.constants:
            if found[index] > _LARGEST_CONSTANT:
                found[index] = 0
        return found

    @cached_property
    def steps(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Births and deaths of each step, and which of those born in it outlive it."""
        found = []
        for begin, end in pairwise(self.ends):
            codes = self.order[begin:end]
            dead = {-1 - code for code in codes if code < 0}
            found.append((codes, tuple(code for code in codes if code >= 0 and code not in dead)))
        return found

    @cached_property
    def windows(self) -> list[int]:
        """For every birth the position at which its op is over: where its thread frees, or asks for another op."""
        windows = [0] * len(self.order)
        after: dict[int, int] = {}  # the next position of each thread
        for position in range(len(self.order) - 1, -1, -1):
            code, thread = self.order[position], self.threads[position]
            if code >= 0:
                following = after.get(thread, len(self.order))
                same = (
                    following < len(self.order)
                    and self.order[following] >= 0
                    and self.allocations[self.order[following]].op == self.allocations[code].op
                )
                windows[position] = windows[following] if same else following
            after[thread] = position
        return windows

    @cached_property
    def _polynomials(self) -> Any:
        import numpy as np

        return np.array([allocation.polynomial for allocation in self.allocations]).T


def script_of(recording: Recording, optimizer: str) -> Script:
    """Turns a recording into what can be replayed at any batch size."""
    names = Names(recording.layers, optimizer)
    layer_of, phase_of = cache(names.layer), cache(names.phase)  # every step has the same ops
    all_steps: tuple[Step | Compiled, ...] = (
        *recording.folded,
        *recording.smaller,
        *recording.steps,
        *recording.compiled,
    )
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
    constants = []
    if recording.folded:
        for event, asker in askers(recording.folded[-1].events, recording.folded[-1].batch):
            constants.append(len(found))
            found.append(
                (event.op, layer_of(event.op), "workspace", "", event.shape, sizes[asker], len(found))
            )
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
    count = max(STEPS, _EVENTS // max(1, len(recording.steps[-1].events)))
    for step in recording.steps[:count]:
        outliving = _outliving(step.events)
        who: dict[int, Asker] = {id(event): asker for event, asker in askers(step.events, step.batch)}
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
    return Script(
        allocations, before, frozenset(random), tuple(constants), tuple(order), tuple(ends), tuple(threads)
    )


def _outliving(step: Sequence[Event]) -> set[int]:
    alive: dict[int, int] = {}
    for event in step:
        if event.freed:
            alive.pop(event.address, None)
        else:
            alive[event.address] = id(event)
    return set(alive.values())


class Peak(NamedTuple):
    """The peak of one replayed step.

    Attributes:
        bytes: What is in use there.
        run: The recorded steps that were replayed, in order; the last of them has this peak.
        position: Where in the script's order.
    """

    bytes: int
    run: tuple[int, ...]
    position: int


@dataclass(frozen=True)
class Moment:
    """A moment of a replay: every living allocation with the bytes it asked for and those it occupies."""

    position: int
    living: tuple[tuple[Allocation, int, int], ...]


class Replay:
    """A run in the model of the allocator: what Keras leaves before the first step, then step by step.

    Attributes:
        asked: The bytes each allocation asks for.
        sizes: The same, rounded as the allocator does.
        allocator: The model of the allocator.
        held: The chunk of each allocation born in the step that is on, or None.
        kept: The living chunks of what was there before it, by the bytes asked for.
    """

    def __init__(self, script: Script, batch: int, limit: int = 2**62) -> None:
        self.script = script
        asked = script.sizes(batch)
        self.asked: list[int] = asked.tolist()
        self.sizes: list[int] = rounded(asked).tolist()
        self.allocator = BFC(limit)
        self.held: list[Chunk | None] = [None] * len(self.sizes)
        self.kept: dict[int, list[Chunk]] = defaultdict(list)
        self._prepare()

    def _prepare(self) -> None:
        """Lays out what is there before the first step, in the order and with the gaps that Keras leaves."""
        script, allocate, release = self.script, self.allocator.allocate, self.allocator.release
        for index in range(script.before):
            if index in script.random:
                # A seed, the generator's key and counter; the value is drawn, scaled and shifted, each into a
                # buffer of its own. Small as the others are, it is them that open the first region.
                size = self.sizes[index]
                seed, key, counter, drawn = (allocate(bytes_) for bytes_ in (8, 8, 16, size))
                scale = allocate(4)
                scaled = allocate(size)
                release(scale)
                self.serve((index,))
                for chunk in (scaled, key, counter, drawn, seed):
                    release(chunk)
            else:
                value = allocate(4)
                self.serve((index,))
                release(value)
            allocate(_HANDLE)
        self.serve(script.order[: script.ends[0]])
        self.keep(range(len(self.held)))

    def serve(self, codes: Iterable[int]) -> tuple[int, int]:
        """Serves births and deaths; returns the largest bytes in use and how many codes came before."""
        return self.allocator.serve(codes, self.sizes, self.held, self.kept)

    def keep(self, indices: Iterable[int]) -> None:
        """Ends a step: what it leaves behind may die in any later one."""
        for index in indices:
            chunk = self.held[index]
            if chunk is not None:
                self.kept[self.sizes[index]].append(chunk)
                self.held[index] = None

    def step(self, number: int) -> tuple[int, int]:
        """Replays a recorded step; returns its largest bytes in use and the position in the script's order."""
        codes, outliving = self.script.steps[number]
        highest, where = self.serve(codes)
        self.keep(outliving)
        return highest, self.script.ends[number] + where

    def living(self) -> Iterator[tuple[int, int]]:
        """Yields the number of every living allocation and the bytes it occupies."""
        for chunk in chain(*self.kept.values(), self.held):
            if chunk is not None:
                yield chunk[OWNER], chunk[SIZE]


def runs(script: Script) -> list[tuple[int, ...]]:
    """Returns which recorded steps make up the runs to replay: the first, then four of the others.

    The allocator's gaps depend on all that went before, so the same steps peak elsewhere in another order. There
    are as many runs as another batch size has time for, the recorded one among them.
    """
    others = range(1, len(script.ends) - 1)
    events = max(1, (len(script.order) - script.ends[0]) // (len(others) + 1))
    left = min(_MOST_RUNS * STEPS, _EVENTS // events) - STEPS
    random = Random(0)
    found = [(0, *others[: STEPS - 1])]
    while others and left >= _LEAST_STEPS:
        length = min(left, STEPS)
        found.append((0, *random.sample(others, min(length - 1, len(others)))))
        left -= length
    return found


def peaks(script: Script, batch: int) -> list[list[Peak]]:
    """Returns the peaks of the steps of each run."""
    found = []
    with _no_collection():
        for run in runs(script):
            replay = Replay(script, batch)
            steps = []
            for end, number in enumerate(run, 1):
                highest, position = replay.step(number)
                steps.append(Peak(highest, run[:end], position))
            found.append(steps)
    return found


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keeps Python from looking for garbage in all there is, because of the many chunks that come and go."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def moment(script: Script, batch: int, peak: Peak) -> Moment:
    """Returns what is alive at a peak."""
    replay = Replay(script, batch)
    *before, last = peak.run
    for number in before:
        replay.step(number)
    replay.serve(script.order[script.ends[last] : peak.position + 1])
    return Moment(
        peak.position,
        tuple((script.allocations[n], replay.asked[n], occupied) for n, occupied in replay.living()),
    )


def course(script: Script, batch: int, run: tuple[int, ...]) -> list[Counter[str]]:
    """Returns the bytes in use by kind after every event of a run's last step; they add up to the whole."""
    replay = Replay(script, batch)
    *before, last = run
    for number in before:
        replay.step(number)
    sums: Counter[str] = Counter()
    for index, _ in replay.living():
        sums[script.allocations[index].kind] += replay.asked[index]
    found = []
    for code in script.steps[last][0]:
        if code < 0:
            kept = replay.kept.get(replay.sizes[-1 - code])
            dying = replay.held[-1 - code] or (kept[-1] if kept else None)
            if dying is not None:
                sums[script.allocations[dying[OWNER]].kind] -= replay.asked[dying[OWNER]]
        else:
            sums[script.allocations[code].kind] += replay.asked[code]
        replay.serve((code,))
        sums["rounding"] = 0
        sums["rounding"] = replay.allocator.in_use - sum(sums.values())
        found.append(sums.copy())
    return found
