"""The law of a leak: what grows in proportion to time, from the middle of what was watched to its end.

It knows no seconds and no bytes. A start, a cache that fills up and a shuffle buffer take a part of the time and
then stop, so only the second half counts. What is freed again is taken off before: a figure counts only as far as
no later one is below it. And it has to be more than there ever was before: a list that is emptied now and then is
not.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

# Parts of the second half, each of which has to add its share.
_PARTS = 3
# Two looks in each part at least, or chance would decide.
LOOKS = 4 * _PARTS
# What fills up adds less and less; the last part of a leak adds at least this share of the mean.
_STEADY = 1 / 3


class Series:
    """A figure over time in a bounded number of rows: when they are full, every second one goes."""

    def __init__(self, most: int = 512) -> None:
        self.times: list[float] = []
        self.sizes: list[int] = []
        self._most, self._each, self._skipped = most, 1, 0

    def add(self, time: float, size: int) -> None:
        """Adds a row, or leaves it out where rows have become rarer; the latest row is always the last."""
        if self._skipped:
            self.times[-1], self.sizes[-1] = time, size
        else:
            self.times.append(time)
            self.sizes.append(size)
        self._skipped = (self._skipped + 1) % self._each
        if len(self.times) >= self._most:
            del self.times[1::2], self.sizes[1::2]
            self._each, self._skipped = 2 * self._each, 0

    def rate(self) -> float | None:
        """Returns what is added in a second; None where it does not leak."""
        return steady_rate(self.times, self.sizes)


def steady_rate(times: Sequence[float], sizes: Sequence[int]) -> float | None:
    """Returns how much is added in a second, or None where there is no steady growth.

    Args:
        times: When the figures were taken, ascending; the first is when watching began.
        sizes: The figures.

    Example:
        >>> steady_rate(range(20), [5 * second for second in range(20)])
        5.0
        >>> steady_rate(range(20), [5 * min(second, 7) for second in range(20)]) is None  # filled up
        True
    """
    if len(times) < LOOKS:
        return None
    begin, end = (times[0] + times[-1]) / 2, times[-1]
    kept = list(accumulate(reversed(sizes), min))[::-1]
    first = next(number for number, time in enumerate(times) if time >= begin)
    if first == 0 or len(times) - first < LOOKS // 2:
        return None
    floors: list[list[int]] = [[] for _ in range(_PARTS)]
    for time, size in zip(times[first:], kept[first:], strict=True):
        floors[min(int(_PARTS * (time - begin) / (end - begin)), _PARTS - 1)].append(size)
    if not all(floors):
        return None
    # The first figure of a part: what stays of it. The last figure of all closes the last part.
    lows = [*(part[0] for part in floors), kept[-1]]
    steps = [after - before for before, after in pairwise(lows)]
    mean = sum(steps) / len(steps)
    if min(steps) <= 0 or steps[-1] < _STEADY * mean or kept[-1] <= max(sizes[:first]):
        return None
    return (kept[-1] - kept[first]) / (end - times[first])
