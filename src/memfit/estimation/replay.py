"""Replaying recorded steps at another batch size through the model of TensorFlow's allocator."""

import gc
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import NamedTuple

from memfit.budgets.arena import left_for_one_piece
from memfit.estimation.allocations import EVENTS, STEPS, Allocation, Script
from memfit.estimation.bfc import BFC, OWNER, SIZE, Chunk, rounded

_MOST_RUNS = 16
# What TensorFlow knows a variable by.
_HANDLE = 200
# Laying out a variable takes up to fourteen births and deaths, one by one.
_EVENTS_OF_A_VARIABLE = 20
# More than any step takes, and less than the model of the allocator has addresses for.
_WITHOUT_LIMIT = 2**44
# A run of fewer shows only the first step and what is like it.
_LEAST_STEPS = 3


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
        if script.one_piece:
            left = left_for_one_piece(min(self.allocator.limit, _WITHOUT_LIMIT), self.allocator.peak)
            if left > 0:
                release(allocate(left))
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
    a_step = max(1, (len(script.order) - script.ends[0]) // (len(others) + 1))
    before = _EVENTS_OF_A_VARIABLE * script.before + script.ends[0]
    left = EVENTS - before - STEPS * a_step
    random = Random(0)
    found = [(0, *others[: STEPS - 1])]
    while others and len(found) < _MOST_RUNS and left >= before + _LEAST_STEPS * a_step:
        length = min(STEPS, (left - before) // a_step)
        found.append((0, *random.sample(others, min(length - 1, len(others)))))
        left -= before + length * a_step
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
