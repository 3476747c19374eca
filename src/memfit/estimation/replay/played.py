"""What of a script is replayed at a batch size, and which steps in a row."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from random import Random
from typing import Any

from memfit.estimation.recording.recording import STEPS
from memfit.estimation.replay.allocator import round_up
from memfit.estimation.replay.script import Script

# Births and deaths to replay, three quarters of a microsecond each: another batch is to take tens of milliseconds.
_EVENTS = 40_000
_MOST_RUNS = 16
# Steps after the first in a run that takes longer than that: they have many thousands of ops, and differ little.
_FEWEST_LATER = 2


@dataclass(frozen=True)
class PlayedStep:
    """What is replayed of a step.

    Attributes:
        codes: Births and deaths.
        outliving: Those born in the step that outlive it.
    """

    codes: list[int]
    outliving: list[int]


class Played:
    """A script at a batch size.

    Small buffers are most of a step's events and next to none of its bytes, but they break large gaps into two.
    With them a MobileNetV2 was replayed at 410 to 429 MiB, as it was measured, and without at up to 483.

    Attributes:
        script: The script.
        asked: The bytes each allocation asks for there.
        sizes: The same, rounded as the allocator does.
    """

    def __init__(self, script: Script, batch: int, whole: int | None = None) -> None:
        self.script = script
        self._asked = script.sizes(batch, whole)
        self._sizes = round_up(self._asked)
        self.asked: list[int] = self._asked.tolist()
        self.sizes: list[int] = self._sizes.tolist()
        self._steps: dict[int, PlayedStep] = {}

    def step(self, number: int) -> PlayedStep:
        """Returns what is replayed of a recorded step."""
        if number not in self._steps:
            script = self.script
            begin, end = script.ends[number], script.ends[number + 1]
            codes = script.codes[begin:end]
            born = codes[codes >= 0]
            self._steps[number] = PlayedStep(codes.tolist(), born[~script.brief[born]].tolist())
        return self._steps[number]

    def runs(self, most: int | None = None) -> list[tuple[int, ...]]:
        """Returns which recorded steps make up the runs to replay: a first one, then four of the others.

        The allocator's gaps depend on all that went before, so the same steps peak elsewhere in another order.
        There are as many runs as another batch size has time for, or `most`. Their steps stand for all that were
        recorded, in even distances from those that ask for the least at once to those that ask for the most.
        """
        firsts, steps = self.script.first_steps, len(self.script.ends) - 1
        if steps == firsts:
            return [(first,) for first in range(firsts)]
        count = most or self._count()
        a_run = STEPS - 1 if most else self._later()
        later = self._chosen(range(firsts, steps), count * a_run)
        return [
            (first, *later[number * a_run : (number + 1) * a_run])
            for number, first in enumerate(self._chosen(range(firsts), count))
        ]

    def _chosen(self, steps: range, count: int) -> list[int]:
        ranked = sorted(steps, key=self._highest.__getitem__)
        chosen = [ranked[(2 * number + 1) * len(ranked) // (2 * count)] for number in range(count)]
        Random(0).shuffle(chosen)
        return chosen

    def _count(self) -> int:
        """How many runs there is time for."""
        a_run = self._preparation + STEPS * self._a_step + 1
        return min(_MOST_RUNS, max(1, _EVENTS // a_run))

    def _later(self) -> int:
        """How many steps after the first there is time for in a run."""
        left = _EVENTS - self._preparation - self._a_step
        return min(STEPS - 1, max(_FEWEST_LATER, left // max(1, self._a_step)))

    @property
    def _preparation(self) -> int:
        """How many births and deaths there are before the first step."""
        return len(self.script.layout.codes) + len(self.script.preparation)

    @property
    def _a_step(self) -> int:
        """How many births and deaths a step has."""
        return len(self.script.order) // max(1, len(self.script.ends) - 1)

    @cached_property
    def _changes(self) -> Any:
        """What each position of the order changes the bytes in use by, if no chunk is larger than it has to be."""
        return self.script.signs * self._sizes[self.script.indices]

    @cached_property
    def _highest(self) -> list[int]:
        """The most bytes that are asked for at once in each step."""
        script, changes = self.script, self._changes
        start = in_use = int(self._sizes[: script.variables].sum() + changes[: script.ends[0]].sum())
        highest = []
        for number, (begin, end) in enumerate(pairwise(script.ends)):
            if number < script.first_steps:
                in_use = start
            sums = changes[begin:end].cumsum()
            highest.append(in_use + int(sums.max(initial=0)))
            in_use += int(changes[begin:end].sum())
        return highest
