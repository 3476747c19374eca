"""The thread that watches: figures ten times a second, looks at what holds memory as often as they may cost."""

import contextlib
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import psutil

from memfit.budgets.budget import read_count
from memfit.compat.tf_runtime import is_initialised
from memfit.errors import InvalidInput
from memfit.training.leaks.holders import Holding, find_holdings
from memfit.training.leaks.judging import Track, is_growing, judge
from memfit.training.leaks.law import Series
from memfit.training.leaks.leak import Leaks
from memfit.training.leaks.lines import LOST, LineTrace, find_adding_lines
from memfit.training.leaks.user_code import Traced, line_that_traces
from memfit.training.leaks.weighing import weigh_items

_TICK = 0.1
# Shares of the time: what ticks, looks and tracing lines may cost. Together they stay below three percent.
_TICKS, _LOOKS, _LINES = 0.004, 0.012, 0.006
# Tracing shorter than one turn of a loop sees nothing.
_LEAST_SECONDS = 0.005
_MOST_GLANCED_AT = 30  # holders; those that a loop lets grow are few
_WEIGHED = {2**power for power in range(40)}
_AT_ONCE = 3  # holders whose lines are looked for together


@dataclass
class _Costs:
    """What watching has cost, in seconds of processor time, against the time that went by."""

    begun: tuple[float, float] = field(default_factory=lambda: (time.perf_counter(), time.process_time()))
    ticks: float = 0.0
    first: float = 0.0
    looks: float = 0.0
    lines: float = 0.0
    last_look: float = 0.0

    def elapsed(self) -> float:
        """The shorter of time and processor time: a look holds up both."""
        return min(time.perf_counter() - self.begun[0], time.process_time() - self.begun[1])

    def total(self) -> float:
        return self.ticks + self.first + self.looks + self.lines


class Watcher:
    """Watches this process from a thread, on behalf of the thread that made it.

    Attributes:
        costs: What watching has cost.
    """

    def __init__(self) -> None:
        self.costs = _Costs()
        self._thread_id = threading.get_ident()
        self._debugged = sys.gettrace() is not None
        Traced.count += self._debugged
        self._in_main = threading.current_thread() is threading.main_thread()
        self._process = psutil.Process()
        self._begun = time.perf_counter()
        self._memory = {"host": Series(), "device": Series()}
        self._first: dict[object, tuple[float, int]] = {}
        self._tracks: dict[object, Track] = {}
        self._lines: Counter[str] = Counter()
        self._tracing: Counter[str] = Counter()
        self._trace: tuple[LineTrace, list[Counter[str]], float] | None = None
        self._looked = 0
        self._growing: dict[object, Holding] = {}
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
        self._read_code()
        self._growing.clear()
        self._read_memory()
        self._look()
        leaks = self.leaks()
        self._growing.clear()
        Traced.count -= self._debugged
        return leaks

    def leaks(self) -> Leaks:
        """Returns what leaks so far."""
        seconds = time.perf_counter() - self._begun
        for track in self._tracks.values():
            if track.kind in ("traced function", "library") and not track.lines:
                track.lines = self._tracing
        self._read_code()
        leaks = judge(list(self._tracks.values()), self._memory, self._lines, seconds)
        return Leaks(tuple(leaks), seconds)

    def _read_code(self) -> None:
        """Looks up where the user's code adds to what leaks."""
        for key, holding in list(self._growing.items()):
            if self._tracks[key].sizes.rate() is not None:
                self._tracks[key].written = tuple(find_adding_lines(holding))

    def _run(self) -> None:
        while not self._stop.wait(_TICK):
            elapsed = self.costs.elapsed()
            with contextlib.suppress(Exception):  # what watches must not fail for what is watched
                self._take_lines()
                if self.costs.ticks <= _TICKS * elapsed:
                    self._tick()
                if self.costs.looks + self.costs.last_look <= _LOOKS * elapsed:
                    self._look()
                self._find_lines(elapsed)

    def _tick(self) -> None:
        begun = time.thread_time()
        self._read_memory()
        self._glance()
        self._tracing.update(filter(None, [line_that_traces(self._thread_id)]))
        self.costs.ticks += time.thread_time() - begun

    def _read_memory(self) -> None:
        now = time.perf_counter() - self._begun
        self._memory["host"].add(now, self._read_host())
        device = self._device()
        count = None if device is None else read_count(device)
        if count is not None:
            self._memory["device"].add(now, count.current)

    def _device(self) -> str | None:
        """The device that trains; None before TensorFlow has started its devices."""
        tensorflow = sys.modules.get("tensorflow")
        if not hasattr(tensorflow, "config") or not is_initialised():
            return None
        return "GPU:0" if sys.modules["tensorflow"].config.list_physical_devices("GPU") else "CPU:0"

    def _look(self) -> None:
        """Takes the sizes of what holds memory, and remembers what has grown."""
        begun = time.thread_time()
        now = time.perf_counter() - self._begun
        growing: dict[object, Holding] = {}
        for holding in find_holdings(
            self._thread_id, (self, self._tracks, self._first, self._memory, self._growing)
        ):
            track = self._tracks.get(holding.key)
            if track is None:
                first = self._first.setdefault(holding.key, (now, holding.size))
                if holding.size <= first[1]:
                    continue
                track = self._tracks[holding.key] = Track(holding.path, holding.kind)
                if first[0] > 0:
                    # What was not there when watching began had nothing in it.
                    track.sizes.add(0.0, 0 if self._looked > 1 else first[1])
                track.sizes.add(*first)
            if holding.size > track.sizes.sizes[-1]:
                track.grew += 1
                # Weighing takes milliseconds: ever less often.
                if holding.kind in ("container", "cache") and track.grew in _WEIGHED:
                    track.item, track.opaque = weigh_items(holding.items())
            track.sizes.add(now, holding.size)
            if len(growing) < _MOST_GLANCED_AT and holding.size > track.sizes.sizes[0]:
                growing[holding.key] = holding
        self._growing = growing
        self._looked += 1
        cost = time.thread_time() - begun
        if self.costs.first:
            self.costs.last_look = cost
            self.costs.looks += cost
        else:  # finds out once which modules are the user's
            self.costs.first = cost

    def _glance(self) -> None:
        """Takes the sizes of what has grown before: that costs next to nothing, and a look does not."""
        now = time.perf_counter() - self._begun
        for key, holding in list(self._growing.items()):
            if holding.is_gone():
                del self._growing[key]
                continue
            with contextlib.suppress(Exception):  # changed meanwhile: the next look will tell
                self._tracks[key].sizes.add(now, holding.measure())

    def _find_lines(self, elapsed: float) -> None:
        """Begins to look for the lines at which the fastest growing holders grow, as far as that may cost."""
        seconds = (_LINES * elapsed - self.costs.lines) / LOST
        if self._trace is not None or not self._in_main or seconds < _LEAST_SECONDS:
            return
        known = [(self._tracks[key], holding) for key, holding in self._growing.items()]
        wanted = [(track, holding) for track, holding in known if is_growing(track)]
        wanted.sort(key=lambda each: (sum(each[0].lines.values()), -each[0].bytes_grown()))
        measures = [holding.measure for _, holding in wanted[:_AT_ONCE]]
        lines = [track.lines for track, _ in wanted[:_AT_ONCE]]
        if not wanted and self._memory["host"].rate() is not None:
            measures, lines = [self._read_host], [self._lines]
        if measures:
            trace = LineTrace(measures, seconds)
            if trace.start():
                self._trace = (trace, lines, time.perf_counter() + max(1.0, 0.2 * elapsed))

    def _read_host(self) -> int:
        memory = self._process.memory_info()
        return int(memory.rss - memory.shared)

    def _take_lines(self) -> None:
        if self._trace is None:
            return
        trace, lines, until = self._trace
        if not trace.ended and time.perf_counter() > until:
            trace.stop()
        if trace.ended:
            self.costs.lines += LOST * trace.seconds
            for known, seen in zip(lines, trace.blamed, strict=True):
                known.update(seen)
            self._trace = None


_lock = threading.Lock()
_running: list[Watcher] = []  # at most one


def begin() -> Watcher:
    """Begins to watch this process.

    Raises:
        InvalidInput: If it is watched already.
    """
    with _lock:
        if _running:
            raise InvalidInput(
                "A watch cannot run inside another one: both would watch the same memory",
                remedy="Watch only the outer loop, and not in a script that runs under `memfit run --watch`",
            )
        _running.append(Watcher())
        return _running[0]


def end(watcher: Watcher) -> Leaks:
    """Ends a watch and returns what leaks; nothing where it has ended before."""
    with _lock:
        if watcher not in _running:
            return Leaks()
        _running.remove(watcher)
    return watcher.stop()
