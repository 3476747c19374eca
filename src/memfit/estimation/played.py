"""What of a script is replayed at a batch size: not every step, and of a step not every small buffer."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from random import Random
from typing import Any

from memfit.estimation.allocations import STEPS, Script
from memfit.estimation.bfc import rounded

# Births and deaths to replay, three quarters of a microsecond each: another batch is to take tens of milliseconds.
_EVENTS = 40_000
_MOST_RUNS = 16
# A run of fewer shows only the first step and what is like it.
_LEAST_STEPS = 3
# Laying out a variable takes up to fourteen births and deaths, one by one.
_EVENTS_OF_A_VARIABLE = 20
# Small buffers that come and go in a step are most of its events and next to none of its bytes. So much of the peak
# may be left out, and none that has more than the second.
_LEFT_OUT = 1 / 200
_SMALL = 1 / 4000


@dataclass(frozen=True)
class PlayedStep:
    """What is replayed of a step.

    Attributes:
        codes: Births (n) and deaths (-1 - n).
        positions: Where each is in the script's order.
        outliving: Those born in the step that outlive it.
    """

    codes: list[int]
    positions: list[int]
    outliving: list[int]


class Played:
    """A script at a batch size.

    Under a cap small buffers count, because they break large gaps into two: there the script is replayed whole.

    Attributes:
        script: The script.
        asked: The bytes each allocation asks for there.
        sizes: The same, rounded as the allocator does.
    """

    def __init__(self, script: Script, batch: int, *, whole: bool = False) -> None:
        self.script = script
        self._whole = whole
        self._asked = script.sizes(batch)
        self._sizes = rounded(self._asked)
        self.asked: list[int] = self._asked.tolist()
        self.sizes: list[int] = self._sizes.tolist()
        self._steps: dict[int, PlayedStep] = {}

    def step(self, number: int) -> PlayedStep:
        """Returns what is replayed of a recorded step."""
        import numpy as np

        if number not in self._steps:
            script = self.script
            begin, end = script.ends[number], script.ends[number + 1]
            indices = script.indices[begin:end]
            stays = ~self._small[indices]
            codes = script.codes[begin:end][stays]
            born = codes[codes >= 0]
            self._steps[number] = PlayedStep(
                codes.tolist(),
                (np.flatnonzero(stays) + begin).tolist(),
                born[~script.brief[born]].tolist(),
            )
        return self._steps[number]

    def runs(self, most: int | None = None) -> list[tuple[int, ...]]:
        """Returns which recorded steps make up the runs to replay: the first, then up to four of the others.

        The allocator's gaps depend on all that went before, so the same steps peak elsewhere in another order.
        There are as many runs as another batch size has time for, or `most`. Their steps stand for all that were
        recorded, in even distances from those that ask for the least at once to those that ask for the most.
        """
        others = len(self.script.ends) - 2
        if others < 1:
            return [(0,)]
        lengths = [STEPS] * most if most is not None else self._lengths()
        count = sum(lengths) - len(lengths)
        ranked = sorted(range(1, others + 1), key=self._highest.__getitem__)
        chosen = [ranked[(2 * number + 1) * others // (2 * count)] for number in range(count)]
        Random(0).shuffle(chosen)
        steps = iter(chosen)
        return [(0, *(next(steps) for _ in range(length - 1))) for length in lengths]

    def _lengths(self) -> list[int]:
        """How many steps each run has."""
        script = self.script
        a_step = max(1, len(self.step(len(script.ends) - 2).codes))
        before = _EVENTS_OF_A_VARIABLE * script.before + script.ends[0]
        found: list[int] = []
        left = _EVENTS
        while len(found) < _MOST_RUNS and (not found or left >= before + _LEAST_STEPS * a_step):
            found.append(max(_LEAST_STEPS, min(STEPS, (left - before) // a_step)))
            left -= before + found[-1] * a_step
        return found

    @cached_property
    def _changes(self) -> Any:
        """What each position of the order changes the bytes in use by, if no chunk is larger than it has to be."""
        return self.script.signs * self._sizes[self.script.indices]

    @cached_property
    def _highest(self) -> list[int]:
        """The most bytes that are asked for at once in each step."""
        in_use = self._changes.cumsum() + self._sizes[: self.script.before].sum()
        return [int(in_use[begin:end].max(initial=0)) for begin, end in pairwise(self.script.ends)]

    @cached_property
    def _small(self) -> Any:
        """For every allocation whether it is left out, as an array."""
        script, highest = self.script, max(self._highest)
        if self._whole:
            return script.brief & False
        # The last step stands for all.
        last = slice(script.ends[-2], script.ends[-1])
        indices, changes = script.indices[last], self._changes[last]
        limit = int(_SMALL * highest)
        while True:
            small = script.brief & (self._sizes <= limit)
            if (changes * small[indices]).cumsum().max(initial=0) <= _LEFT_OUT * highest:
                return small
            limit //= 2
