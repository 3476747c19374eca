"""Measured memory over a run of any length in a bounded number of rows."""

from dataclasses import replace

from memfit.training.records.record import Mark, Series

MOST_ROWS = 400
MOST_MARKS = 600
_LONGEST_SENTENCE = 1000
_FIRST_INTERVAL = 0.5  # seconds; doubled whenever there are too many rows
_ROUTINE = ("epoch", "validation", "checkpoint")


class SeriesBuilder:
    """Gathers rows; where there are too many, two become one, with the higher figures of both.

    Attributes:
        interval: Seconds that one row stands for.
    """

    def __init__(self, earlier: Series = Series()) -> None:  # noqa: B008 (frozen)
        """Goes on where an earlier process of the run stopped."""
        self._rows = list(zip(*vars(earlier).values(), strict=True))
        self.interval = _FIRST_INTERVAL
        while earlier.seconds and earlier.seconds[-1] > self.interval * MOST_ROWS:
            self.interval *= 2

    def add(self, seconds: float, device: int | None, host: int, batches: int) -> None:
        """Adds the row of an interval that has ended."""
        self._rows.append((round(seconds, 2), device, host, batches))
        if len(self._rows) > MOST_ROWS:
            pairs = zip(self._rows[::2], self._rows[1::2], strict=False)
            left_over = self._rows[len(self._rows) // 2 * 2 :]
            self._rows = [
                (later[0], _higher(first[1], later[1]), max(first[2], later[2]), later[3])
                for first, later in pairs
            ] + left_over
            self.interval *= 2

    def build(self) -> Series:
        """Returns what was gathered."""
        return Series(*map(tuple, zip(*self._rows, strict=True))) if self._rows else Series()


def thin_out(marks: list[Mark]) -> list[Mark]:
    """Returns marks, of too many only every second epoch, validation and checkpoint; of the rest the last."""
    if len(marks) <= MOST_MARKS:
        return marks
    routine = [mark for mark in marks if mark.kind in _ROUTINE]
    kept = {id(mark) for mark in routine[::2]}
    thinner = [mark for mark in marks if mark.kind not in _ROUTINE or id(mark) in kept]
    return thinner[-MOST_MARKS:]


def shortened(mark: Mark) -> Mark:
    """Returns a mark whose sentence is not longer than a record can take."""
    says = mark.says
    return mark if len(says) <= _LONGEST_SENTENCE else replace(mark, says=says[:_LONGEST_SENTENCE] + "...")


def _higher(first: int | None, second: int | None) -> int | None:
    known = [value for value in (first, second) if value is not None]
    return max(known, default=None)
