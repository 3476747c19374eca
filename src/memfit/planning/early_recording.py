"""A recording whose process starts before it is known what it is to record.

Until TensorFlow is there and the model is unpacked some seconds go by, in which a search finds out what to record.
"""

import os
import pickle
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from memfit.estimation.estimate import Estimate
from memfit.estimation.recording.step import Build, Step
from memfit.planning.candidates import Way

_SECONDS_BETWEEN_LOOKS = 0.02
Start = Callable[[Build, Callable[[], None]], Estimate]
Compute = Callable[[Any, Way], Step]


class NotWanted(Exception):
    """Ends a process that waited to be told what to record."""


class EarlyRecording:
    """A process that waits to be told a way of computing the step.

    Attributes:
        way: What it was told; None while it waits.
    """

    def __init__(self, start: Start, compute: Compute) -> None:
        """Starts it, and returns when the model has been copied.

        Args:
            start: Starts the recording, with what prepares the model there, and with what to call once the model
                has been copied.
            compute: Gives the copied model the step that is computed in some way.
        """
        self.way: Way | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="memfit-")
        self._pool = ThreadPoolExecutor(max_workers=1)
        copied = threading.Event()
        prepare = partial(_when_told, folder=self._folder.name, compute=compute)
        self._recording = self._pool.submit(start, prepare, copied.set)
        self._recording.add_done_callback(lambda _: copied.set())
        copied.wait()

    def tell(self, way: Way) -> None:
        """Says what to record; only the first time counts."""
        if self.way is None:
            self.way = way
            file = Path(self._folder.name, "way")
            file.with_suffix(".new").write_bytes(pickle.dumps(way))
            file.with_suffix(".new").rename(file)

    def result(self) -> Estimate:
        """Waits for the recording."""
        try:
            return self._recording.result()
        finally:
            self.end()

    def end(self) -> None:
        """Ends a process that has not been told anything, or forgets what it records."""
        self._folder.cleanup()
        self._pool.shutdown(wait=False)


def _when_told(model: Any, folder: str, compute: Compute) -> Step:
    """Waits for the way, and prepares the model for it; runs in the process that records."""
    file, parent = Path(folder, "way"), os.getppid()
    while not file.exists():
        if not file.parent.exists() or os.getppid() != parent:
            raise NotWanted
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    return compute(model, pickle.loads(file.read_bytes()))
