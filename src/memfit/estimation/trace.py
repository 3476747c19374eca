"""The allocator's own events of some steps, as TensorFlow's profiler writes them."""

import re
import tempfile
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from memfit.estimation.private_apis import read_xspace

_ALLOCATOR = "bfc_cpu_allocator_for_gpu"  # the arena's name in TensorFlow, whatever the device

_MARK = "memfit-mark"
# A compiled function is numbered anew for every batch size.
_NUMBERED = re.compile(r"^(__inference_.*)_\d+$")


@dataclass(frozen=True, slots=True)
class Event:
    """One allocation or deallocation.

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


@dataclass
class Trace:
    """What was seen while a trace was on.

    Attributes:
        steps: The events of the arena's allocator in order, one list for every `mark` and what came before it.
        seconds: Time spent per op name, summed over the trace.
    """

    steps: list[list[Event]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


def mark() -> None:
    """Ends a step of the trace that is on."""
    import tensorflow as tf

    with tf.profiler.experimental.Trace(_MARK):
        pass


@contextmanager
def traced() -> Iterator[Trace]:
    """Traces the arena's allocator while the block runs; the trace is filled when the block has ended."""
    import tensorflow as tf

    trace = Trace()
    with tempfile.TemporaryDirectory(prefix="memfit-") as folder:
        options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0)
        tf.profiler.experimental.start(folder, options)
        try:
            yield trace
        finally:
            tf.profiler.experimental.stop()
        for file in Path(folder).rglob("*.xplane.pb"):
            _read(read_xspace(file.read_bytes()), trace)


def _read(space: Any, trace: Trace) -> None:
    found: list[tuple[int, Event]] = []
    marks: list[int] = []
    for plane in space.planes:
        names = {key: data.name for key, data in plane.event_metadata.items()}
        texts = {key: data.name for key, data in plane.stat_metadata.items()}
        for thread, line in enumerate(plane.lines):
            for event in line.events:
                name = names[event.metadata_id]
                if name in ("MemoryAllocation", "MemoryDeallocation"):
                    read = _event(event, texts, thread, freed=name == "MemoryDeallocation")
                    if read is not None:
                        found.append((line.timestamp_ns * 1000 + event.offset_ps, read))
                elif name == _MARK:
                    marks.append(line.timestamp_ns * 1000 + event.offset_ps)
                elif ":" in name and "::" not in name:
                    op = name.partition(":")[0]
                    trace.seconds[op] = trace.seconds.get(op, 0.0) + event.duration_ps / 1e12
    found.sort(key=_time)
    events = [event for _, event in found]
    times = [time for time, _ in found]
    ends = [bisect_left(times, time) for time in sorted(marks)]
    trace.steps.extend(events[begin:end] for begin, end in pairwise([0, *ends]))


def _time(item: tuple[int, Event]) -> int:
    return item[0]


def _event(event: Any, texts: dict[int, str], thread: int, *, freed: bool) -> Event | None:
    values: dict[str, Any] = {}
    for stat in event.stats:
        kind = stat.WhichOneof("value")
        value = getattr(stat, kind)
        values[texts[stat.metadata_id]] = texts[value] if kind == "ref_value" else value
    if values.get("allocator_name") != _ALLOCATOR:
        return None
    return Event(
        values["addr"],
        values["requested_bytes"],
        values["allocation_bytes"],
        _NUMBERED.sub(r"\1", values.get("tf_op", "")),
        values.get("region_type", ""),
        values.get("shape", ""),
        freed,
        thread,
    )
