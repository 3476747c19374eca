"""Watching one training and keeping its record on disk: a thread that looks, so that steps cost nothing."""

import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from memfit.budgets.peaks import PeakMeter
from memfit.sizes import Size
from memfit.training.records.files import remove_oldest, write_record
from memfit.training.records.record import RUNNING, Mark, RunRecord
from memfit.training.records.series import SeriesBuilder, shortened, thin_out

_LOG = logging.getLogger("memfit")
_LOOK_SECONDS = 0.1  # as the monitor's: often enough for batches of some seconds, tens of microseconds a look
# The file is written anew after 2 s at least, and only when that has cost less than 0.1% of the time since.
_WRITE_SECONDS = 2.0
_WRITE_SHARE = 0.001

_current: "weakref.ref[Recorder] | None" = None


class Recorder:
    """Keeps the record of one training; nothing that goes wrong here reaches the training.

    Args:
        record: What is known before the training begins, or the record of an earlier process of the run.
        folder: Where its file is written.
        events: The list that the guard appends to; each becomes a mark at the moment it is seen.
    """

    def __init__(self, record: RunRecord, folder: Path, events: Sequence[Any] = ()) -> None:
        global _current
        self._record, self._folder, self._events = record, folder, events
        self._seen_events = 0
        self._marks = list(record.marks)
        self._series = SeriesBuilder(record.series)
        self._meter = PeakMeter(record.device)
        self._process = psutil.Process()
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._bucket_begun = self._written = time.monotonic()
        self._bucket_host = self._bucket_device = 0
        self._cost = 0.0
        self._failed = False
        self._position: tuple[int | None, int] = (record.epoch, record.batch)
        self._steps = self._steps_before = record.steps
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
            threading.Thread(target=_run, args=(weakref.ref(self), self._stop), daemon=True).start()

    def end(self, outcome: str, says: str) -> None:
        """Stops looking and writes how it ended."""
        global _current
        _current = None
        self._stop.set()
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

    def note_steps(self, steps: int) -> None:
        """Notes how many batches an epoch has, as Keras found out."""
        with self._lock:
            self._record = replace(self._record, facts={**self._record.facts, "steps_per_epoch": steps})

    def note_position(self, epoch: int | None, batch: int, trained: int) -> None:
        """Notes where the training is.

        Args:
            epoch: The epoch, counted from 0.
            batch: Batches of it that were trained.
            trained: Batches that this process has trained in all.
        """
        self._position = (epoch, batch)
        self._steps = self._steps_before + trained
        if self._first_step is None and trained:
            self._first_step = time.time() - self._record.begun

    def note_step_time(self, seconds: float, steps: int) -> None:
        """Adds the time of some batches in a row, without the first of an epoch."""
        with self._lock:
            self._timed_seconds += seconds
            self._timed_steps += steps

    def begin_phase(self) -> None:
        """Begins a new peak of the device; called by the thread that trains, between two steps."""
        with contextlib.suppress(Exception), self._lock:
            self._bucket_device = max(self._bucket_device, self._meter.restart())

    def host_now(self) -> int:
        """Returns the resident memory of this process."""
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
        self._bucket_host = max(self._bucket_host, self.host_now())
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


def mark_current(kind: str, says: str = "") -> None:
    """Marks a moment in the record of the training that runs in this process, if there is one."""
    recorder = None if _current is None else _current()
    if recorder is not None:
        recorder.mark(kind, says)


def _run(reference: "weakref.ref[Recorder]", stop: threading.Event) -> None:
    while not stop.wait(_LOOK_SECONDS):
        recorder = reference()
        if recorder is None:
            return
        recorder.look()
        del recorder


def _higher(before: Size | None, now: int | None) -> Size | None:
    return before if now is None else Size(max(before or 0, now))
