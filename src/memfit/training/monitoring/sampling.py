"""A thread that looks at the memory a few times a second, so that the training itself never has to."""

import threading
import weakref
from collections.abc import Callable
from typing import Any

import psutil

from memfit.budgets.budget import read_count
from memfit.sizes import Size

# Often enough to see what a batch of some seconds does to the host; one look takes tens of microseconds.
_SECONDS = 0.1


class Sampler:
    """Keeps the last and the highest figures seen since `restart`.

    Attributes:
        device: Which device is looked at, such as "GPU:0".
        host: Resident host memory of this process.
        host_peak: The highest of it.
        device_now: Bytes of live tensors on the device.
        device_peak: TensorFlow's own peak, which misses nothing between two looks.
        stop: Ends the looking.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self._process = psutil.Process()
        self.restart()
        self.stop = look_regularly(self)

    def restart(self) -> None:
        """Forgets the peaks; TensorFlow's counter is the caller's to reset."""
        self.host_peak = Size(0)
        self.look()

    def look(self) -> None:
        """Takes the figures of this moment."""
        count = read_count(self.device)
        self.device_now, self.device_peak = (
            (Size(0), Size(0)) if count is None else (count.current, count.peak)
        )
        self.host = Size(self._process.memory_info().rss)
        self.host_peak = max(self.host_peak, self.host)


def look_regularly(looker: Any) -> Callable[[], Any]:
    """Lets a thread call `looker.look()` ten times a second; returns what ends that.

    A fit that fails never says that it ended: the thread ends with the looker, at the latest.
    """
    stop, reference = threading.Event(), weakref.ref(looker)

    def run() -> None:
        while not stop.wait(_SECONDS):
            there = reference()
            if there is None:
                return
            there.look()
            del there

    threading.Thread(target=run, daemon=True).start()
    return weakref.finalize(looker, stop.set)
