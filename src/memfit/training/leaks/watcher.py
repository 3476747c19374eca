"""The thread that watches: figures ten times a second, looks at what holds memory as often as they may cost."""

import contextlib
import sys
import threading
import time
from dataclasses import dataclass, field

import psutil

from memfit.budgets.budget import read_count
from memfit.compat.tf_runtime import is_initialised
from memfit.training.leaks.holders import Holding, find_holdings
from memfit.training.leaks.judging import Track, is_growing, judge
from memfit.training.leaks.law import Series
from memfit.training.leaks.leak import Leaks
from memfit.training.leaks.lines import SECONDS_AN_EVENT, LineTrace
from memfit.training.leaks.weighing import weigh_items

_TICK = 0.1
# Shares of the time: what looks may cost, and what tracing lines may. With the ticks it stays below two percent.
_LOOKS, _LINES = 0.015, 0.006
# Tracing shorter than one turn of a loop sees nothing.
_LEAST_EVENTS = 2000
_AT_ONCE = 3  # holders whose lines are looked for together


@dataclass
class _Costs:
    """What watching has cost, in seconds of processor time, against the time that went by."""

    begun: tuple[float, float] = field(default_factory=lambda: (time.perf_counter(), time.process_time()))
    ticks: float = 0.0
    looks: float = 0.0
    lines: float = 0.0
    last_look: float = 0.0

    def elapsed(self) -> float:
        """The shorter of time and processor time: a look holds up both."""
        return min(time.perf_counter() - self.begun[0], time.process_time() - self.begun[1])

    def total(self) -> float:
        return self.ticks + self.looks + self.lines


class Watcher:
    """Watches this process from a thread, on behalf of the thread that made it.

    Attributes:
        costs: What watching has cost.
    """

    def __init__(self) -> None:
        self.costs = _Costs()
        self._thread_id = threading.get_ident()
        self._in_main = threading.current_thread() is threading.main_thread()
        self._process = psutil.Process()
        self._begun = time.perf_counter()
        self._memory = {"host": Series(), "device": Series()}
        self._first: dict[str, tuple[float, int]] = {}
        self._tracks: dict[str, Track] = {}
        self._trace: tuple[LineTrace, list[Track], float] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memfit.watch", daemon=True)
        self._thread.start()

    def stop(self) -> Leaks:
        """Ends watching, and returns what leaks."""
        self._stop.set()
        self._thread.join()
        if self._trace is not None:
            self._trace[0].stop()
            self._take_lines()
        self._read_memory()
        self._look()
        return self.leaks()

    def leaks(self) -> Leaks:
        """Returns what leaks so far."""
        seconds = time.perf_counter() - self._begun
        found = judge(list(self._tracks.values()), self._memory, seconds)
        return Leaks(tuple(found), seconds)

    def _run(self) -> None:
        while not self._stop.wait(_TICK):
            begun = time.thread_time()
            self._read_memory()
            self._take_lines()
            self.costs.ticks += time.thread_time() - begun
            elapsed = self.costs.elapsed()
            if self.costs.looks + self.costs.last_look <= _LOOKS * elapsed:
                with contextlib.suppress(Exception):  # what watches must not end what is watched
                    self._find_lines(self._look(), elapsed)

    def _read_memory(self) -> None:
        now = time.perf_counter() - self._begun
        memory = self._process.memory_info()
        self._memory["host"].add(now, memory.rss - memory.shared)
        if "tensorflow" in sys.modules and is_initialised():
            tensorflow = sys.modules["tensorflow"]
            gpus = tensorflow.config.list_physical_devices("GPU")
            count = read_count("GPU:0" if gpus else "CPU:0")
            if count is not None:
                self._memory["device"].add(now, count.current)

    def _look(self) -> dict[str, Holding]:
        """Takes the sizes of what holds memory; returns those that have grown."""
        begun = time.thread_time()
        now = time.perf_counter() - self._begun
        grown = {}
        # A function that calls itself has its names more than once: the outermost counts.
        found = find_holdings(self._thread_id, (self, self._tracks, self._first, self._memory))
        for holding in {holding.path: holding for holding in reversed(found)}.values():
            track = self._tracks.get(holding.path)
            if track is None:
                first = self._first.setdefault(holding.path, (now, holding.size))
                if holding.size <= first[1]:
                    continue
                track = self._tracks[holding.path] = Track(holding.path, holding.kind)
                track.sizes.add(0.0, 0 if first[0] > 2 * _TICK + now / 4 else first[1])
                track.sizes.add(*first)
            if holding.size > track.sizes.sizes[-1]:
                grown[holding.path] = holding
                if holding.kind in ("container", "cache"):
                    track.weigh(*weigh_items(holding.items()))
            track.sizes.add(now, holding.size)
        self.costs.last_look = time.thread_time() - begun
        self.costs.looks += self.costs.last_look
        return grown

    def _find_lines(self, grown: dict[str, Holding], elapsed: float) -> None:
        """Begins to look for the lines at which the fastest growing holders grow, as far as that may cost."""
        events = int((_LINES * elapsed - self.costs.lines) / SECONDS_AN_EVENT)
        if self._trace is not None or not self._in_main or events < _LEAST_EVENTS:
            return
        wanted = [self._tracks[path] for path in grown if is_growing(self._tracks[path])]
        wanted = sorted(wanted, key=lambda track: (sum(track.lines.values()), -track.bytes_grown()))[:_AT_ONCE]
        if wanted:
            trace = LineTrace([grown[track.path].measure for track in wanted], events)
            if trace.start():
                self._trace = (trace, wanted, time.perf_counter() + max(1.0, 0.2 * elapsed))

    def _take_lines(self) -> None:
        if self._trace is None:
            return
        trace, tracks, until = self._trace
        if not trace.ended and time.perf_counter() > until:
            trace.stop()
        if trace.ended:
            self.costs.lines += SECONDS_AN_EVENT * trace.events
            for track, lines in zip(tracks, trace.blamed, strict=True):
                track.lines += lines
            self._trace = None
