"""The allocator's own events of some steps, as TensorFlow's profiler writes them."""

import re
import tempfile
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from memfit.compat.tf_profiles import ALLOCATION, ALLOCATION_FIGURES, DEALLOCATION, read_xspace
from memfit.compat.tf_runtime import ARENA_ALLOCATOR

# Whether the memory is given back, by the event's name; and the figures of an event that are read.
_MEMORY = {ALLOCATION: False, DEALLOCATION: True}
_WANTED = {name: position for position, name in enumerate(ALLOCATION_FIGURES)}
_MARK = "memfit-mark"
# A compiled function is numbered anew for every batch size.
_NUMBERED = re.compile(r"^(__inference_.*)_\d+$")


class Event(NamedTuple):
    """One allocation or deallocation; a tuple, because a recording makes tens of thousands.

    Attributes:
        address: Where; an allocation and its deallocation share it.
        requested: Bytes asked for.
        occupied: Bytes of the chunk handed out.
        op: Name of the graph's op that asked; empty for eager ones and for deallocations.
        region: What it is for: "output", "temp", "persist", or "".
        shape: The tensor's shape as text, such as "[8,16,16,32]"; empty where unknown.
        freed: Whether this is a deallocation.
        thread: Number of the thread it happened in.
    """

    address: int
    requested: int
    occupied: int
    op: str
    region: str
    shape: str
    freed: bool
    thread: int = 0


def mark() -> None:
    """Ends a step of the trace that is on."""
    import tensorflow as tf

    with tf.profiler.experimental.Trace(_MARK):
        pass


@contextmanager
def traced() -> Iterator[list[tuple[Event, ...]]]:
    """Traces the arena's allocator while the block runs.

    Yields:
        A list that is filled when the block has ended: for every `mark` the events in order since the one before.
    """
    import tensorflow as tf

    steps: list[tuple[Event, ...]] = []
    with tempfile.TemporaryDirectory(prefix="memfit-") as folder:
        options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0)
        tf.profiler.experimental.start(folder, options)
        try:
            yield steps
        finally:
            tf.profiler.experimental.stop()
        for file in Path(folder).rglob("*.xplane.pb"):
            _read(read_xspace(file.read_bytes()), steps)


def _read(space: Any, steps: list[tuple[Event, ...]]) -> None:
    timed: list[tuple[int, Event]] = []
    marks: list[int] = []
    for plane in space.planes:
        # Looked up by number, because most events are not about memory, and there are ten thousands.
        names = {key: data.name for key, data in plane.event_metadata.items()}
        memory = {key: _MEMORY[name] for key, name in names.items() if name in _MEMORY}
        marking = {key for key, name in names.items() if name == _MARK}
        texts = {key: data.name for key, data in plane.stat_metadata.items()}
        wanted = {key: _WANTED[name] for key, name in texts.items() if name in _WANTED}
        for thread, line in enumerate(plane.lines):
            begin = line.timestamp_ns * 1000
            for event in line.events:
                key = event.metadata_id
                if key in memory:
                    read = _event(event, wanted, texts, thread, freed=memory[key])
                    if read is not None:
                        timed.append((begin + event.offset_ps, read))
                elif key in marking:
                    marks.append(begin + event.offset_ps)
    timed.sort(key=itemgetter(0))
    events = [event for _, event in timed]
    times = [time for time, _ in timed]
    marks.sort()
    ends = [bisect_left(times, time) for time in marks]
    steps.extend(tuple(events[begin:end]) for begin, end in pairwise([0, *ends]))


def _event(
    event: Any, wanted: dict[int, int], texts: dict[int, str], thread: int, *, freed: bool
) -> Event | None:
    address = requested = occupied = 0
    op = region = shape = ""
    for stat in event.stats:
        field_number = wanted.get(stat.metadata_id)
        if field_number is None:
            continue
        if field_number == 0:
            if _text(stat, texts) != ARENA_ALLOCATOR:
                return None
        elif field_number == 1:
            address = _number(stat)
        elif field_number == 2:
            requested = _number(stat)
        elif field_number == 3:
            occupied = _number(stat)
        elif field_number == 4:
            op = _text(stat, texts)
        elif field_number == 5:
            region = _text(stat, texts)
        else:
            shape = _text(stat, texts)
    if op.startswith("__"):
        op = _NUMBERED.sub(r"\1", op)
    return Event(address, requested, occupied, op, region, shape, freed, thread)


def _number(stat: Any) -> int:
    # Which of the two it is depends on the value's type in C++; the other one reads as 0.
    return int(stat.uint64_value or stat.int64_value)


def _text(stat: Any, texts: dict[int, str]) -> str:
    return str(stat.str_value) or texts.get(stat.ref_value, "")
