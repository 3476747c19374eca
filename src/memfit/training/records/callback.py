"""The callback that tells a recorder of epochs, validations and batches."""

import time
from typing import Any

import keras

from memfit.sizes import Size
from memfit.training.monitoring.growth import find_steady_growth
from memfit.training.records.recorder import Recorder


class RecordingCallback(keras.callbacks.Callback):
    """Tells a recorder where the training is; a batch costs it a microsecond."""

    # It may run beside the next step instead of holding it up.
    async_safe = True

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._epoch: int | None = None
        self._batch: int | None = None  # of the epoch; None where it was joined in its middle
        self._trained = 0
        self._epoch_begun = self._test_begun = time.perf_counter()
        self._first_ended: tuple[float, int] | None = None
        self._at_epoch_ends: list[int] = []
        self._leaks = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Notes the batches of an epoch, where Keras knows them by now."""
        if steps := (self.params or {}).get("steps"):
            self._recorder.note_steps(int(steps))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch."""
        self._epoch, self._batch, self._epoch_begun = epoch, 0, time.perf_counter()
        self._recorder.note_position(epoch, 0, self._trained)
        self._recorder.begin_phase()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts the batch."""
        self._trained += batch + 1 - (batch if self._batch is None else self._batch)
        self._batch = batch + 1
        self._recorder.note_position(self._epoch, self._batch, self._trained)
        if self._first_ended is None:
            self._first_ended = time.perf_counter(), self._batch

    def on_test_begin(self, logs: Any = None) -> None:
        """Notes that a validation begins."""
        self._stop_clock()
        self._test_begun = time.perf_counter()
        self._recorder.begin_phase()

    def on_test_end(self, logs: Any = None) -> None:
        """Marks the validation."""
        self._recorder.mark("validation", lasted=time.perf_counter() - self._test_begun)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Marks the epoch, and looks for a leak."""
        self._stop_clock()
        self._epoch = epoch
        self._recorder.note_position(epoch, self._batch or 0, self._trained)
        self._recorder.mark("epoch", lasted=time.perf_counter() - self._epoch_begun)
        self._look_for_leak()

    def _stop_clock(self) -> None:
        """Ends the time of the epoch's batches; validation is not part of it."""
        if self._first_ended is None or self._batch is None:
            return
        begun, first = self._first_ended
        if self._batch > first:
            self._recorder.note_step_time(time.perf_counter() - begun, self._batch - first)
        self._first_ended = None

    def _look_for_leak(self) -> None:
        self._at_epoch_ends.append(self._recorder.host_now())
        growth = None if self._leaks else find_steady_growth("host", self._at_epoch_ends)
        if growth is not None:
            self._leaks = True
            says = f"Host memory grew by {Size(growth[0])} an epoch, {growth[1]} epochs in a row."
            self._recorder.mark(
                "leak", f"{says} Add memfit.MemoryMonitor() to the callbacks to see what grows."
            )
