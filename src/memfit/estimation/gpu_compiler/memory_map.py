"""Where XLA puts a step's temporaries in their block, and from when to when each is there, from its dumps."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_BLOCK = re.compile(r"^allocation \d+: size (\d+), preallocated-temp:\n((?:[ \t].*\n?)*)", re.MULTILINE)
# A loop's tensors are "phi": what it begins with, or what a round has made.
_VALUE = re.compile(r"value: <\d+ ([\w.\-]+)(\{[\d,]*\})?(?: \(phi\))? @\d+> \(size=(\d+),offset=(\d+)\)")
_RANGE = re.compile(r"^\s+([\w.\-]+)(\{[\d,]*\})?:(\d+)-(\d+)$", re.MULTILINE)
_PLACE = re.compile(r"^\s+(\d+):([\w.\-]+)$", re.MULTILINE)
# The block is fullest where a temporary begins that is no smaller than this part of it.
_LARGE = 1 / 500


@dataclass(frozen=True)
class Temporary:
    """A part of the block, from the instruction that makes it to the last that reads it."""

    name: str
    offset: int
    bytes: int
    begin: int
    end: int


@dataclass(frozen=True)
class MemoryMap:
    """The temporaries of a step, and the time of each instruction."""

    temporaries: tuple[Temporary, ...]
    times: Mapping[str, int]

    def occupied(self, time: int) -> int:
        """Returns the bytes that are in use while an instruction runs."""
        return sum(temporary.bytes for temporary in self.at(time))

    def at(self, time: int) -> list[Temporary]:
        """Lists what is in use while an instruction runs; of those in one place the largest."""
        temporaries: list[Temporary] = []
        end = 0
        there = (each for each in self.temporaries if each.begin <= time <= each.end)
        for each in sorted(there, key=lambda each: (each.offset, -each.bytes)):
            if each.offset + each.bytes > end:
                temporaries.append(each)
                end = each.offset + each.bytes
        return temporaries

    def fullest(self) -> int:
        """Returns the time at which most is in use."""
        block = max((each.offset + each.bytes for each in self.temporaries), default=0)
        begins = {each.begin for each in self.temporaries if each.bytes >= _LARGE * block}
        return max(sorted(begins), key=self.occupied, default=0)

    def more(self, scratch: Iterable[tuple[str, int]]) -> int:
        """Returns how much more is in use at most if instructions need so much scratch memory while they run."""
        most = max((each.offset + each.bytes for each in self.temporaries), default=0)
        wanted = (
            self.occupied(self.times[name]) + size for name, size in scratch if name in self.times and size
        )
        return max(0, max(wanted, default=0) - most)


def read(assignment: str, live_ranges: str) -> MemoryMap:
    """Reads XLA's dumps of a module's buffers and of the times they are in use."""
    order, _, rest = live_ranges.partition("BufferLiveRange:")
    lives = {
        (name, index or "{}"): (int(begin), int(end))
        for name, index, begin, end in _RANGE.findall(rest.partition("Live ranges at")[0])
    }
    temporaries: list[Temporary] = []
    base = 0
    for size, values in _BLOCK.findall(assignment):
        for name, index, bytes_, offset in _VALUE.findall(values):
            if (name, index or "{}") in lives:
                begin, end = lives[name, index or "{}"]
                temporaries.append(Temporary(name, base + int(offset), int(bytes_), begin, end))
        base += int(size)
    return MemoryMap(tuple(temporaries), {name: int(place) for place, name in _PLACE.findall(order)})
