"""Peaks of a device's memory that several may measure at once, and taking the rest of an arena as one region."""

import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

import tensorflow as tf

from memfit.budgets.arena import arena_cap, pieces_left
from memfit.budgets.budget import read_count
from memfit.sizes import Size

_MIB = 2**20
_region_taken = False  # once in a process: the allocator keeps what it has taken
_meters: list["PeakMeter"] = []
_lock = threading.RLock()  # run records peek from a thread of their own


def device_name() -> str:
    """Returns the device that trains: the first GPU, or the CPU (and with it the arena)."""
    return "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"


def take_peak(device: str) -> Size:
    """Returns the peak since TensorFlow's counter was last reset, and resets it; 0 where it does not count.

    Whoever resets the counter takes the peak away from the others that read it; meters that are open keep it.
    """
    with _lock:
        count = read_count(device)
        if count is None:
            return Size(0)
        for meter in _meters:
            if meter.device == device:
                meter.peak = max(meter.peak, count.peak)
        tf.config.experimental.reset_memory_stats(device)
        return count.peak


class PeakMeter:
    """Measures the peak of a device over a `with` block, other measurements inside of it notwithstanding.

    Attributes:
        device: Such as "GPU:0".
        peak: The highest use seen, complete when the block has ended; 0 if that does not count.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.peak = Size(0)

    def __enter__(self) -> Self:
        with _lock:
            take_peak(self.device)
            _meters.append(self)
        return self

    def peek(self) -> Size:
        """Returns the highest use seen up to now without touching TensorFlow's counter, as any thread may.

        Resetting is for the thread that trains: a step that runs between reading and resetting would be lost.
        """
        with _lock:
            count = read_count(self.device)
            return self.peak if count is None else max(self.peak, count.peak)

    def restart(self) -> Size:
        """Returns the highest use since the last restart, and begins anew; for the thread that trains."""
        with _lock:
            peak, self.peak = self.so_far(), Size(0)
        return peak

    def so_far(self) -> Size:
        """Returns the highest use seen up to now."""
        take_peak(self.device)
        return self.peak

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _lock:
            take_peak(self.device)
            _meters.remove(self)


def take_one_region() -> None:
    """Lets an arena's allocator take all that is left at once, and keep it: no tensor lies across two regions.

    A GPU's allocator has its memory in one region unless memory growth is on. An arena's takes regions that double.
    Nothing is written, so the operating system gives no memory yet. Outside of an arena nothing is done.
    """
    global _region_taken
    cap = arena_cap()
    if cap is None or _region_taken or tf.config.list_logical_devices("GPU"):
        return
    _region_taken = True
    for left in pieces_left(cap, take_peak("CPU:0")):
        # Where more regions were taken than is usual, or memory was in use that was not counted.
        with suppress(tf.errors.ResourceExhaustedError):
            _allocate(tf.constant([left // _MIB, _MIB]))
            break
    tf.config.experimental.reset_memory_stats("CPU:0")


@tf.function(autograph=False)
def _allocate(shape: tf.Tensor) -> tf.Tensor:
    # A recording knows the allocation by this name, and its replay takes what is left there.
    return tf.raw_ops.Empty(shape=shape, dtype=tf.uint8, init=False, name="memfit_one_region")
