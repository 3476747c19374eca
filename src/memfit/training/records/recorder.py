"""Watching one training and keeping its record on disk: a thread that looks, so that steps cost nothing."""

import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import psutil

from memfit.budgets.peaks import PeakMeter
from memfit.sizes import Size
from memfit.training.monitoring.growth import find_steady_growth
from memfit.training.monitoring.sampling import look_regularly
from memfit.training.records.files import remove_oldest, write_record
from memfit.training.records.record import RUNNING, Mark, RunRecord
from memfit.training.records.series import SeriesBuilder, shortened, thin_out

_LOG = logging.getLogger("memfit")
# The file is written anew after 2 s at least, and only when that has cost less than 0.1% of the time since.
_WRITE_SECONDS = 2.0
_WRITE_SHARE = 0.001

_current: "weakref.ref[Recorder] | None" = None


class Recorder(keras.callbacks.Callback):
    """Keeps the record of one training; nothing that goes wrong here reaches the training.

    As a callback it hears of epochs, validations and batches; a batch costs it a microsecond.

    Args:
        record: What is known before the training begins, or the record of an earlier process of the run.
        folder: Where its file is written.
        events: The list that the guard appends to; each becomes a mark at the moment it is seen.
    """

    # It may run beside the next step instead of holding it up.
    async_safe = True

    def __init__(self, record: RunRecord, folder: Path, events: Sequence[Any] = ()) -> None:
        global _current
        super().__init__()
        self._record, self._folder, self._events = record, folder, events
        self._seen_events = 0
        self._marks = list(record.marks)
        self._series = SeriesBuilder(record.series)
        self._meter = PeakMeter(record.device)
        self._process = psutil.Process()
        self._lock = threading.RLock()
        self._stop: Callable[[], Any] = lambda: None
        self._bucket_begun = self._written = time.monotonic()
        self._bucket_host = self._bucket_device = 0
        self._cost = 0.0
        self._failed = False
        self._position: tuple[int | None, int] = (record.epoch, record.batch)
        self._steps = record.steps
        self._batch: int | None = None  # of the epoch; None where it was joined in its middle
        self._epoch: int | None = None
        self._epoch_begun = self._test_begun = time.perf_counter()
        self._first_ended: tuple[float, int] | None = None
        self._at_epoch_ends: list[int] = []
        self._leaks = False
        self._timed_seconds, self._timed_steps = 0.0, 0
        self._first_step: float | None = record.first_step_seconds
        self.path: Path | None = None
        _current = weakref.ref(self)

    @property
    def record(self) -> RunRecord:
        """What is known by now."""
        with self._lock:
            mean = self._timed_seconds / self._timed_steps if self._timed_steps else self._record.step_seconds
            return replace(
                self._record,
                updated=time.time(),
                marks=tuple(self._marks),
                series=self._series.build(),
                epoch=self._position[0],
                batch=self._position[1],
                steps=self._steps,
                step_seconds=mean,
                first_step_seconds=self._first_step,
            )

    def start(self) -> None:
        """Writes the first file and begins to look."""
        with contextlib.suppress(Exception):
            self._meter.__enter__()
            self._write()
            self._cost = 0.0  # the first one imports modules, and says nothing of the next
            remove_oldest(self._folder)
            self._stop = look_regularly(self)

    def end(self, outcome: str, says: str) -> None:
        """Stops looking and writes how it ended."""
        global _current
        _current = None
        self._stop()
        with contextlib.suppress(Exception), self._lock:
            self._look()
            self._close_bucket()
            self._meter.__exit__(None, None, None)
            self._record = replace(self._record, outcome=outcome, says=says)
            if outcome != RUNNING:
                self._record = replace(self._record, ended=time.time())
            self._write()

    def mark(self, kind: str, says: str = "", *, lasted: float | None = None) -> None:
        """Marks a moment; with `lasted`, the moment so many seconds ago."""
        with self._lock:
            seconds = time.time() - self._record.begun - (lasted or 0.0)
            epoch, batch = self._position
            rounded = None if lasted is None else round(lasted, 3)
            mark = Mark(round(seconds, 2), kind, says, epoch, batch, rounded)
            self._marks = thin_out([*self._marks, shortened(mark)])

    # What Keras calls.

    def on_train_begin(self, logs: Any = None) -> None:
        """Notes the batches of an epoch, where Keras knows them by now."""
        if steps := (self.params or {}).get("steps"):
            with self._lock:
                facts = {**self._record.facts, "steps_per_epoch": int(steps)}
                self._record = replace(self._record, facts=facts)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch."""
        self._epoch, self._batch, self._epoch_begun = epoch, 0, time.perf_counter()
        self._position = (epoch, 0)
        self._begin_phase()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts the batch."""
        self._steps += batch + 1 - (batch if self._batch is None else self._batch)
        self._batch = batch + 1
        self._position = (self._epoch, self._batch)
        if self._first_step is None:
            self._first_step = time.time() - self._record.begun
        if self._first_ended is None:
            self._first_ended = time.perf_counter(), self._batch

    def on_test_begin(self, logs: Any = None) -> None:
        """Notes that a validation begins."""
        self._stop_clock()
        self._test_begun = time.perf_counter()
        self._begin_phase()

    def on_test_end(self, logs: Any = None) -> None:
        """Marks the validation."""
        self.mark("validation", lasted=time.perf_counter() - self._test_begun)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Marks the epoch, and looks for a leak."""
        self._stop_clock()
        self._epoch = epoch
        self._position = (epoch, self._batch or 0)
        self.mark("epoch", lasted=time.perf_counter() - self._epoch_begun)
        self._look_for_leak()

    def _stop_clock(self) -> None:
        """Ends the time of the epoch's batches but for the first; validation is not part of it."""
        if self._first_ended is None or self._batch is None:
            return
        begun, first = self._first_ended
        if self._batch > first:
            with self._lock:
                self._timed_seconds += time.perf_counter() - begun
                self._timed_steps += self._batch - first
        self._first_ended = None

    def _look_for_leak(self) -> None:
        self._at_epoch_ends.append(self._read_host())
        growth = None if self._leaks else find_steady_growth("host", self._at_epoch_ends)
        if growth is not None:
            self._leaks = True
            says = f"Host memory grew by {Size(growth[0])} an epoch, {growth[1]} epochs in a row."
            self.mark("leak", f"{says} Add memfit.MemoryMonitor() to the callbacks to see what grows.")

    def _begin_phase(self) -> None:
        """Begins a new peak of the device; called by the thread that trains, between two steps."""
        with contextlib.suppress(Exception), self._lock:
            self._bucket_device = max(self._bucket_device, self._meter.restart())

    # What its thread does.

    def _read_host(self) -> int:
        return int(self._process.memory_info().rss)

    def look(self) -> None:
        """Looks at the memory, closes the interval and writes the file where it is time to."""
        with contextlib.suppress(Exception), self._lock:
            self._look()
            now = time.monotonic()
            if now - self._bucket_begun >= self._series.interval:
                self._close_bucket()
            if now - self._written >= max(_WRITE_SECONDS, self._cost / _WRITE_SHARE):
                self._write()

    def _look(self) -> None:
        self._bucket_host = max(self._bucket_host, self._read_host())
        while self._seen_events < len(self._events):
            event = self._events[self._seen_events]
            self._seen_events += 1
            self.mark("out of memory" if event.phase else "note", str(event))

    def _close_bucket(self) -> None:
        device = max(self._bucket_device, int(self._meter.peek())) or None
        seconds = time.time() - self._record.begun
        self._series.add(seconds, device, self._bucket_host, self._steps)
        self._record = replace(
            self._record,
            device_peak=_higher(self._record.device_peak, device),
            host_peak=_higher(self._record.host_peak, self._bucket_host),
        )
        self._bucket_begun, self._bucket_host, self._bucket_device = time.monotonic(), 0, 0

    def _write(self) -> None:
        begun = time.thread_time()
        try:
            self.path = write_record(self.record, self._folder)
        except OSError as error:
            if not self._failed:
                _LOG.info(
                    "The record of the run cannot be written (%s); training continues without it.", error
                )
            self._failed = True
        self._cost = time.thread_time() - begun
        self._written = time.monotonic()


def mark_current(kind: str) -> None:
    """Marks a moment in the record of the training that runs in this process, if there is one."""
    recorder = None if _current is None else _current()
    if recorder is not None:
        recorder.mark(kind)


def _higher(before: Size | None, now: int | None) -> Size | None:
    return before if now is None else Size(max(before or 0, now))
