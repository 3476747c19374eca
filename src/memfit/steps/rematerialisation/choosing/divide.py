"""Dividing a forward pass into segments: dynamic programming over the cuts."""

import numpy as np

from memfit.steps.rematerialisation.choosing.alive import Choice
from memfit.steps.rematerialisation.choosing.options import Cuts, Option
from memfit.steps.rematerialisation.trace import TensorId

# Kept bytes are counted in this many units of the aim; each segment is rounded up.
_UNITS = 160


class Division:
    """Finds cuts with the least recomputation for which each segment stays below a number of bytes."""

    def __init__(self, cuts: Cuts) -> None:
        self._cuts = cuts
        self._options = cuts.list_options()
        self._keeps = [np.array([option.keeps for option in options]) for options in self._options]
        self._holds = [np.array([option.holds for option in options]) for options in self._options]

    def divide(self, aim: float) -> Choice | None:
        """Returns the cheapest choice below `aim` bytes; None where cuts do not get there."""
        path = self._find_path(aim) if aim > 0 else None
        if path is None:
            return None
        kept: set[TensorId] = set()
        for start, option in path:
            kept |= option.inside | self._cuts.alive[self._cuts.places[start]]
        return Choice(frozenset(kept), tuple(self._cuts.places[start] for start, _ in path if start))

    def _find_path(self, aim: float) -> list[tuple[int, Option]] | None:
        """Finds the least cost to reach each cut with each number of kept bytes so far, and the way to the end."""
        unit = aim / _UNITS
        count = len(self._cuts.places)
        best = np.full((count, _UNITS + 1), np.inf)
        best[0, 0] = 0.0
        came_from = np.zeros(
            (count, _UNITS + 1, 2), np.int64
        )  # a cut, and the number of the option taken there
        for start in range(count - 1):
            if not np.isfinite(best[start]).any():
                continue
            more = np.ceil(self._keeps[start] / unit).astype(int)
            # While a segment's backward pass runs, all that was kept up to its end is there.
            room = np.minimum(((aim - self._holds[start]) / unit).astype(int), _UNITS) - more
            for number in np.flatnonzero(room >= 0).tolist():
                option = self._options[start][number]
                costs = best[start, : room[number] + 1] + option.cost
                end = slice(more[number], more[number] + room[number] + 1)
                better = costs < best[option.end, end]
                best[option.end, end][better] = costs[better]
                came_from[option.end, end][better] = start, number
        if not np.isfinite(best[-1]).any():
            return None
        path: list[tuple[int, Option]] = []
        cut, units = count - 1, int(np.argmin(best[-1]))
        while cut:
            start, number = came_from[cut, units].tolist()
            option = self._options[start][number]
            path.append((start, option))
            cut, units = start, units - int(np.ceil(option.keeps / unit))
        return path[::-1]
