"""From what was seen to what is told: which holders leak, how fast, and how much of the growth they explain."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from memfit.sizes import Size
from memfit.training.leaks.law import Series
from memfit.training.leaks.leak import Leak, advise

# Three GiB in a day. Below it lie the numbers a loop logs: a Python float takes 32 bytes, a thousand in a second.
_LEAST = (2 << 20) / 60
# What holders explain of the growth of the process's memory, before no others are looked for.
_MOST = 0.8
# Allocators creep by percents for a while; a tenth of what the process holds, in half of the time, is no creeping.
_BY_FAR = 0.1


@dataclass
class Track:
    """One holder over time.

    Attributes:
        path: How the user reaches it.
        kind: As what it holds memory.
        sizes: Its items (or bytes, of an array) over time.
        grew: In how many looks it had grown.
        item: Bytes of one item as weighed last.
        opaque: Whether its items hold memory that Python cannot see.
        lines: By which lines it was seen to grow.
        written: Where the user's code adds to it, as it is written; for what grows in another thread.
    """

    path: str
    kind: str
    sizes: Series = field(default_factory=Series)
    grew: int = 0
    item: int = 0
    opaque: bool = False
    lines: Counter[str] = field(default_factory=Counter)
    written: tuple[str, ...] = ()

    def bytes_grown(self) -> float:
        """Bytes that it has grown by, as far as Python sees them."""
        grown = self.sizes.sizes[-1] - self.sizes.sizes[0]
        return grown if self.kind == "array" else grown * self.item

    @property
    def line(self) -> str:
        """The line that lets it grow; as it was seen, unless that only waits for another thread."""
        seen = [line for line, _ in self.lines.most_common()]
        both = [line for line in seen if line in self.written]
        return next(
            iter([*both, *(self.written if len(self.written) == 1 else ()), *seen, *self.written]), ""
        )

    @property
    def hides(self) -> bool:
        """Whether its memory has to be measured from outside."""
        return self.opaque or self.kind in ("traced function", "graph", "library")


def is_growing(track: Track) -> bool:
    """Whether a holder is worth looking for its line: it grew in most of the last looks."""
    steps = [after > before for before, after in pairwise(track.sizes.sizes[-6:])]
    heavy = track.hides or track.kind == "array" or track.item >= 64
    return heavy and len(steps) >= 4 and sum(steps) >= len(steps) - 1


def judge(
    tracks: Sequence[Track], memory: Mapping[str, Series], lines: Counter[str], seconds: float
) -> list[Leak]:
    """Returns what leaks, the fastest first.

    Args:
        tracks: The holders.
        memory: The process's memory over time, "host" and "device".
        lines: By which lines the process's memory was seen to grow.
        seconds: For how long was watched.
    """
    growth = {where: _growth(series) for where, series in memory.items()}
    whole = max(growth.values())
    rates = [(track, rate) for track in tracks if (rate := _rate(track, seconds)) is not None]
    leaks: list[Leak] = []
    explained = 0.0
    for track, rate in sorted(rates, key=lambda each: -_bytes(*each)):
        speed = _bytes(track, rate)
        if speed < _LEAST or (leaks and explained >= _MOST * whole):
            break
        explained += speed
        leaks.append(_leak(track, speed, track.item, growth))
    hidden = [(track, rate) for track, rate in rates if track.hides and _bytes(track, rate) < _LEAST]
    rest = whole - explained
    if hidden and rest >= max(_LEAST, (1 - _MOST) * whole):
        track, rate = max(hidden, key=lambda each: (bool(each[0].lines), each[1]))
        leaks.append(_leak(track, rest, int(rest / rate), growth))
        rest = 0.0
    if rest >= (1 - _MOST) * whole:
        # Memory that goes to gaps beside a holder's items grows at the holder's line.
        told = {leak.line for leak in leaks} | ({""} if leaks else set())
        leaks += [leak for leak in _native(memory, lines) if leak.line not in told]
    return leaks


def _native(memory: Mapping[str, Series], lines: Counter[str]) -> list[Leak]:
    """What grows without a holder: on a device, where every byte is counted, or by far on the host."""
    for where in ("device", "host"):
        rate = memory[where].rate()
        if rate is None or rate < _LEAST:
            continue
        grown = rate * (memory[where].times[-1] - memory[where].times[0]) / 2
        if where == "device" or grown >= _BY_FAR * memory[where].sizes[-1]:
            line = lines.most_common(1)[0][0] if lines else ""
            speed = Size(int(60 * rate))
            return [Leak(where, "native", "no Python object", line, speed, Size(0), advise("native"))]
    return []


def _rate(track: Track, seconds: float) -> float | None:
    """Items or bytes in a second; None for what does not leak, or was gone long before the end."""
    return None if track.sizes.times[-1] < 0.75 * seconds else track.sizes.rate()


def _bytes(track: Track, rate: float) -> float:
    return rate if track.kind == "array" else rate * track.item


def _growth(series: Series) -> float:
    """What memory grew by in a second of the second half, steadily or not."""
    if len(series.times) < 2:
        return 0.0
    half = next(
        number for number, time in enumerate(series.times) if time >= (series.times[0] + series.times[-1]) / 2
    )
    passed = series.times[-1] - series.times[half]
    return max(series.sizes[-1] - min(series.sizes[half:]), 0) / passed if passed else 0.0


def _leak(track: Track, speed: float, item: int, growth: Mapping[str, float]) -> Leak:
    where = "device" if growth["device"] >= speed / 2 else "host"
    line = track.line
    return Leak(where, track.kind, track.path, line, Size(int(60 * speed)), Size(item), advise(track.kind))
