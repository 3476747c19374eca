"""`memfit.MemoryMonitor`: the memory of a training by epoch and phase, live and as a record."""

import logging
from typing import Any

import keras

from memfit.budgets.peaks import PeakMeter, device_name
from memfit.sizes import Size
from memfit.training.monitoring.growth import Census, Growth, describe_growth, find_steady_growth, take_census
from memfit.training.monitoring.record import MemoryRecord, PhaseMemory
from memfit.training.monitoring.sampling import Sampler

_GIB = 2**30
_log = logging.getLogger("memfit")


class MemoryMonitor(keras.callbacks.ProgbarLogger):
    """A Keras callback that watches device and host memory and shows it in the progress bar.

    It is Keras's progress bar with two more figures, `device_GiB` (the peak of the epoch so far) and `host_GiB`
    (resident now). Unless asked (`log=True`), no other callback, nor the `History`, sees other logs than without
    it. With `verbose=0` it is silent. A thread does the looking; a step of the training costs nothing.

    Memory that grows steadily for four epochs is logged as a warning of the logger "memfit" and kept in the
    record, with what grows.

    Args:
        log: Whether the two figures go into Keras's logs as well, for the callbacks after this one in the list
            (`TensorBoard`, `CSVLogger`, W&B) and for the `History`.

    Attributes:
        record: A `MemoryRecord` of what was seen so far.

    Example:
        ```python
        monitor = memfit.MemoryMonitor()
        model.fit(x, y, epochs=5, callbacks=[monitor])
        print(monitor.record)
        ```
    """

    # As Keras's own progress bar, it may run beside the next step instead of holding it up.
    async_safe = True

    def __init__(self, *, log: bool = False) -> None:
        super().__init__()
        self._log = log
        self._device = ""
        self._phases: list[PhaseMemory] = []
        self._growths: list[Growth] = []
        self._at_epoch_ends: list[tuple[int, int]] = []
        self._census: tuple[int, Census] | None = None
        self._sampler: Sampler | None = None
        self._meter = PeakMeter("")
        self._epoch = 0
        self._phase = ""
        self._fitting = False

    @property
    def record(self) -> MemoryRecord:
        """What was seen so far."""
        return MemoryRecord(self._device, tuple(self._phases), tuple(self._growths))

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Starts to look."""
        super().on_train_begin(logs)
        self._fitting = True
        self._at_epoch_ends, self._census = [], None
        self._start()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Stops looking."""
        super().on_train_end(logs)
        self._fitting = False
        self._stop()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Opens the epoch's training."""
        super().on_epoch_begin(epoch, logs)
        self._epoch = epoch
        self._open("train")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Closes the epoch and looks for leaks."""
        self._close()
        super().on_epoch_end(epoch, self._with_figures(logs))
        self._look_for_leaks()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Opens a validation, or an evaluation of its own."""
        super().on_test_begin(logs)
        if not self._fitting:
            self._start()
        self._open("validate" if self._fitting else "evaluate")

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Closes it."""
        self._close()
        super().on_test_end(logs if self._fitting else self._with_figures(logs))
        if not self._fitting:
            self._stop()

    def on_predict_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Opens a prediction."""
        super().on_predict_begin(logs)
        self._start()
        self._open("predict")

    def on_predict_end(self, logs: dict[str, Any] | None = None) -> None:
        """Closes it."""
        self._close()
        super().on_predict_end(self._with_figures(logs))
        self._stop()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Shows the figures in the progress bar."""
        shown = self._log or self.verbose == 1
        super().on_train_batch_end(batch, self._with_figures(logs) if shown else logs)

    def _start(self) -> None:
        self._stop()
        self._device = device_name()
        self._sampler = Sampler(self._device)

    def _stop(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None

    def _open(self, phase: str) -> None:
        self._close()
        if self._sampler is not None:
            self._meter = PeakMeter(self._device)
            self._meter.__enter__()
            self._sampler.restart()
            self._phase = phase
        if self.progbar is not None and self.progbar.stateful_metrics is not None:
            # Keras before 3.13 shows the mean over the epoch of whatever is not named here.
            self.progbar.stateful_metrics.update(("device_GiB", "host_GiB"))

    def _close(self) -> None:
        if self._sampler is None or not self._phase:
            return
        self._sampler.look()
        now, host, host_peak = self._sampler.device_now, self._sampler.host, self._sampler.host_peak
        self._meter.__exit__(None, None, None)
        peak = self._meter.peak
        counted = peak > 0  # the CPU's allocator outside of an arena may say 0
        self._phases.append(
            PhaseMemory(
                self._epoch, self._phase, now if counted else None, peak if counted else None, host, host_peak
            )
        )
        self._phase = ""

    def _with_figures(self, logs: dict[str, Any] | None) -> dict[str, Any]:
        """The logs with memory in them; a copy, so that no other callback sees it unless that is asked for."""
        logs = {} if logs is None else logs if self._log else dict(logs)
        if self._sampler is None:
            return logs
        trained = [phase.device_peak for phase in self._phases if phase.epoch == self._epoch]
        so_far = max(self._sampler.device_peak, self._meter.peak)
        peak = so_far if self._phase or not trained else max(filter(None, trained), default=0)
        if peak:
            logs["device_GiB"] = peak / _GIB
        logs["host_GiB"] = self._sampler.host / _GIB
        return logs

    def _look_for_leaks(self) -> None:
        if not self._phases:
            return
        last = self._phases[-1]
        self._at_epoch_ends.append((int(last.host), int(last.device or 0)))
        known = {growth.where for growth in self._growths}
        for index, where in enumerate(("host", "device")):
            sizes = [sizes[index] for sizes in self._at_epoch_ends]
            growth = find_steady_growth(where, sizes)
            if growth is not None and where not in known:
                self._tell(where, *growth)
            elif self._census is None and len(sizes) >= 4 and sizes[-3] < sizes[-2] < sizes[-1]:
                self._census = (len(sizes), take_census())  # two epochs of growth: worth a first count

    def _tell(self, where: str, per_epoch: int, epochs: int) -> None:
        what: tuple[str, ...] = ()
        if self._census is not None and (between := len(self._at_epoch_ends) - self._census[0]):
            what = describe_growth(self._census[1], take_census(), between)
        growth = Growth(where, Size(per_epoch), epochs, what)
        self._growths.append(growth)
        _log.warning("%s", growth)


def find_record(callbacks: Any) -> MemoryRecord | None:
    """Returns the record of the first monitor among the callbacks of a `fit`; None where there is none."""
    monitors = (each for each in list_callbacks(callbacks) if isinstance(each, MemoryMonitor))
    return next((monitor.record for monitor in monitors), None)


def list_callbacks(callbacks: Any) -> list[Any]:
    """Returns the callbacks that `fit` was given, in any of the forms that Keras takes, as a list."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    listed = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
    return [callback for callback in listed if callback is not None]
