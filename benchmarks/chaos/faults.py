"""What goes wrong in a training of the chaos benchmark: each fault once, at its batch, whatever process gets there.

A fault is a file `faults/BATCH` with its kind and a number in it; the file goes before the fault happens.
"""

import ctypes
import os
import resource
import signal
import threading
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
from shortage import take_memory

FOLDER = Path("faults")
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGABRT": signal.SIGABRT}
# Seconds for which the disk is full: long enough for a checkpoint to fail.
FULL_FOR = 0.3


class Faults(keras.callbacks.Callback):
    """Lets faults happen, and notes every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Any] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Notes when the first batch of a process begins, and lets a fault happen."""
        fault = FOLDER / str(len(self.batches))
        if fault.exists():
            kind, number = fault.read_text().split()
            fault.unlink()
            _happen(kind, float(number), self.model)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes the batch: no two have the same loss. Waits, so that a run is long enough for its faults."""
        time.sleep(0.03)
        if not Path("first").exists():
            Path("first").write_text(str(time.time()))
        self.batches.append((batch, float(logs["loss"])))

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Takes memory away in a validation."""
        fault = FOLDER / "validation"
        if fault.exists() and batch == 1:
            fault.unlink()
            take_memory(0.0)

    def predict(self, model: Any) -> Any:
        """Predicts something; takes memory away before it where that is asked for."""
        shape = [8 if size is None else size for size in model.input_shape]
        fault = FOLDER / "prediction"
        if fault.exists():
            fault.unlink()
            take_memory(0.0)
        return model.predict(np.ones([512, *shape[1:]], "float32"), batch_size=512, verbose=0)


def _happen(kind: str, number: float, model: Any) -> None:
    if kind == "memory":
        take_memory(number)
    elif kind == "disk-full":
        _fill_disk()
    elif kind == "torn":
        newest = max(Path(".memfit").glob("*/checkpoint-*.npz"), default=None)
        if newest is not None:
            os.truncate(newest, newest.stat().st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "SIGSEGV":
        threading.Timer(number, ctypes.string_at, [0]).start()  # a real one, in another thread
    else:
        # Some time later, in the middle of whatever happens then.
        threading.Timer(number, os.kill, [os.getpid(), SIGNALS[kind]]).start()


def _fill_disk() -> None:
    """Lets no file of this process grow beyond 1 KiB for a while: writing fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    threading.Timer(FULL_FOR, resource.setrlimit, [resource.RLIMIT_FSIZE, (soft, hard)]).start()
