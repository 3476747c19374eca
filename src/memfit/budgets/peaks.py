"""Peaks of a device's memory that several may measure at once, though TensorFlow keeps only one counter."""

from types import TracebackType
from typing import Self

import tensorflow as tf

from memfit.budgets.counting import read_count
from memfit.sizes import Size

_meters: list["PeakMeter"] = []


def device_name() -> str:
    """Returns the device that trains: the first GPU, or the CPU (and with it the arena)."""
    return "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"


def take_peak(device: str) -> Size:
    """Returns the peak since TensorFlow's counter was last reset, and resets it; 0 where it does not count.

    Whoever resets the counter takes the peak away from the others that read it; meters that are open keep it.
    """
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
        take_peak(self.device)
        _meters.append(self)
        return self

    def so_far(self) -> Size:
        """Returns the highest use seen up to now."""
        take_peak(self.device)
        return self.peak

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        take_peak(self.device)
        _meters.remove(self)
