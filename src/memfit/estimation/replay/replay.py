"""Replaying recorded steps at another batch size through the model of TensorFlow's allocator."""

import gc
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from memfit.budgets.arena import pieces_left
from memfit.estimation.replay.allocator import BFC, OWNER, SIZE, Chunk, OutOfMemory
from memfit.estimation.replay.events import allocation_of, death_of, is_birth
from memfit.estimation.replay.played import Played
from memfit.estimation.replay.script import Allocation

# More than any step takes, and less than the model of the allocator has addresses for.
_WITHOUT_LIMIT = 2**44


class Peak(NamedTuple):
    """The peak of one replayed step.

    Attributes:
        bytes: What is in use there.
        run: The recorded steps that were replayed, in order; the last of them has this peak.
        where: How many births and deaths of that are replayed before.
    """

    bytes: int
    run: tuple[int, ...]
    where: int


@dataclass(frozen=True)
class Moment:
    """A moment of a replay.

    Attributes:
        living: Every living allocation with the bytes it asked for and those it occupies.
        lives: From where to where in its step each of them is alive, as parts of the step.
    """

    living: tuple[tuple[Allocation, int, int], ...]
    lives: tuple[tuple[float, float], ...]


class Replay:
    """A run in the model of the allocator: what Keras leaves before the first step, then step by step.

    Attributes:
        played: What is replayed.
        allocator: The model of the allocator.
        held: The chunk of each allocation born in the step that is on, or None.
        kept: The living chunks of what was there before it, by the bytes asked for and whose value they hold.
    """

    def __init__(self, played: Played, limit: int = 2**62) -> None:
        self.played = played
        self.allocator = BFC(limit)
        self.held: list[Chunk | None] = [None] * len(played.sizes)
        self.kept: dict[int, dict[int, Chunk]] = defaultdict(dict)
        self._prepare()

    def _prepare(self) -> None:
        """Lays out what is there before the first step, in the order and with the gaps that Keras leaves."""
        script = self.played.script
        codes, sizes = script.layout
        made: list[Chunk | None] = [None] * len(sizes)
        self.allocator.serve(codes, sizes, made, {})
        self.held[: script.variables] = made[: script.variables]
        preparation, region_at = script.preparation, script.region_at
        self.serve(preparation[:region_at])
        if region_at is not None:
            self._take_one_region()
            self.serve(preparation[region_at:])
        self.keep(range(script.prepared))

    def _take_one_region(self) -> None:
        """Takes all that is left of the memory at once, which stays one region when it is freed."""
        for left in pieces_left(min(self.allocator.limit, _WITHOUT_LIMIT), self.allocator.peak):
            with suppress(OutOfMemory):
                self.allocator.release(self.allocator.allocate(left))
                break

    def serve(self, codes: Iterable[int]) -> tuple[int, int]:
        """Serves births and deaths; returns the largest bytes in use and how many codes came before."""
        return self.allocator.serve(codes, self.played.sizes, self.held, self.kept, self.played.script.values)

    def keep(self, indices: Iterable[int]) -> None:
        """Ends a step: what it leaves behind may die in any later one."""
        values = self.played.script.values
        for index in indices:
            chunk = self.held[index]
            if chunk is None:
                continue
            of_this_size = self.kept[self.played.sizes[index]]
            value = values[index]
            # Where two buffers hold the same value until one dies, the second goes by a number of its own.
            of_this_size[value if value not in of_this_size else death_of(index)] = chunk
            self.held[index] = None

    def step(self, number: int) -> tuple[int, int]:
        """Replays a recorded step; returns its largest bytes in use and where in it that is."""
        step = self.played.step(number)
        highest, where = self.serve(step.codes)
        self.keep(step.outliving)
        return highest, where

    def dying(self, index: int) -> int | None:
        """Returns the number of the allocation whose chunk is taken back where allocation `index` dies."""
        chunk = self.held[index]
        if chunk is None:
            others = self.kept.get(self.played.sizes[index]) or {}
            chunk = others.get(self.played.script.values[index]) or next(reversed(others.values()), None)
        return None if chunk is None else int(chunk[OWNER])

    def living(self) -> Iterator[tuple[int, int]]:
        """Yields the number of every living allocation and the bytes it occupies."""
        for chunk in chain(*(kept.values() for kept in self.kept.values()), self.held):
            if chunk is not None:
                yield chunk[OWNER], chunk[SIZE]


def find_peaks(played: Played) -> list[list[Peak]]:
    """Returns the peaks of the steps of each run."""
    peaks = []
    with no_collection():
        for run in played.runs():
            replay = Replay(played)
            steps = []
            for end, number in enumerate(run, 1):
                highest, where = replay.step(number)
                steps.append(Peak(highest, run[:end], where))
            peaks.append(steps)
    return peaks


@contextmanager
def no_collection() -> Iterator[None]:
    """Keeps Python from looking for garbage in all there is, because of the many objects that come and go."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def moment(played: Played, peak: Peak) -> Moment:
    """Returns what is alive at a peak."""
    replay = Replay(played)
    *before, last = peak.run
    for number in before:
        replay.step(number)
    codes = played.step(last).codes
    replay.serve(codes[: peak.where + 1])
    allocations, asked = played.script.allocations, played.asked
    living = tuple(replay.living())
    at = {code: position / max(1, len(codes)) for position, code in enumerate(codes)}
    return Moment(
        tuple((allocations[n], asked[n], occupied) for n, occupied in living),
        tuple((at.get(n, 0.0), at.get(death_of(n), 1.0)) for n, _ in living),
    )


def course(played: Played, run: tuple[int, ...]) -> list[Counter[str]]:
    """Returns the bytes in use by kind after every event of a run's last step; they add up to the whole."""
    replay = Replay(played)
    *before, last = run
    for number in before:
        replay.step(number)
    allocations, asked = played.script.allocations, played.asked
    sums: Counter[str] = Counter()
    for index, _ in replay.living():
        sums[allocations[index].kind] += asked[index]
    course = []
    for code in played.step(last).codes:
        if is_birth(code):
            sums[allocations[code].kind] += asked[code]
        elif (dying := replay.dying(allocation_of(code))) is not None:
            sums[allocations[dying].kind] -= asked[dying]
        replay.serve((code,))
        sums["rounding"] = 0
        sums["rounding"] = replay.allocator.in_use - sum(sums.values())
        course.append(sums.copy())
    return course
