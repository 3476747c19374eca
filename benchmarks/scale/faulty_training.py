"""One training of `run_faults.py`, as a script that knows nothing of memfit and little of its rank.

    python faulty_training.py KIND

Faults happen to a rank where a file in `faults/` says so: its name is RANK-MOMENT-NUMBER (`begin`, `end` and `test`
count batches, `start` counts nothing), its text what happens there.
"""

import os
import pickle
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

RANK = os.environ.get("MEMFIT_RANK", "0")


def meet_fate(moment: str, number: int = 0) -> str:
    """Lets happen what is to happen at a moment, once."""
    file = Path("faults", f"{RANK}-{moment}-{number}")
    if not file.exists():
        return ""
    kind, _, more = file.read_text().partition(" ")
    file.unlink()
    with Path("happened").open("a") as log:
        log.write(f"{time.time():.2f} rank {RANK} {moment} {number}: {kind} {more}\n")
    if kind == "late":
        time.sleep(float(more))
    elif kind == "memory":
        return kind
    elif more:  # somewhere in the step that follows
        threading.Timer(float(more), os.kill, (os.getpid(), signal.Signals[kind])).start()
    else:
        os.kill(os.getpid(), signal.Signals[kind])
    return ""


meet_fate("start")

sys.path.insert(0, str(Path(__file__).parents[1]))

import keras  # noqa: E402
import numpy as np  # noqa: E402

from chaos.shortage import take_memory  # noqa: E402  it imports TensorFlow, before which a rank may be late

layers = keras.layers


class Faults(keras.callbacks.Callback):
    """Counts batches, notes their losses, and lets faults happen."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[float] = []
        self.begun = self.tested = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Counts it; where memory is to run out, takes all of it until it has."""
        self.begun += 1
        if meet_fate("begin", self.begun) == "memory":
            take_memory(0.0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes its loss."""
        self.batches.append(logs["loss"])
        meet_fate("end", len(self.batches))

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts it."""
        self.tested += 1
        meet_fate("test", self.tested)


def main() -> None:
    """Trains, and writes everything that can differ."""
    gentle = sys.argv[1] == "memory"  # equal to rounding only, where a step is tightened: so without dropout
    if gentle:
        keras.config.set_floatx("float64")
        keras.utils.set_random_seed(1)
    if gentle:
        parts = [keras.Input((16, 16, 3)), layers.Conv2D(16, 3, padding="same", activation="tanh")]
        parts += [layers.Conv2D(8, 3, strides=2, activation="tanh"), layers.Flatten(), layers.Dense(1)]
    else:
        parts = [keras.Input((16, 16, 3)), layers.Flatten(), layers.Dense(8), layers.BatchNormalization()]
        parts += [layers.Dropout(0.2), layers.Dense(1)]
    model = keras.Sequential(parts)
    rate = keras.optimizers.schedules.ExponentialDecay(0.01, 20, 0.9)
    optimizer = keras.optimizers.SGD(0.01) if gentle else keras.optimizers.Adam(rate, global_clipnorm=1.0)
    model.compile(optimizer, "mse", metrics=["mae"])
    x, y = np.random.normal(size=(330, 16, 16, 3)), np.random.normal(size=(330, 1))
    faults = Faults()
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", patience=0, min_delta=0.5) if gentle else None
    more = {"callbacks": [each for each in (faults, plateau) if each is not None], "verbose": 0}
    first = model.fit(x, y, batch_size=30, epochs=5, validation_split=0.1, validation_batch_size=11, **more)
    second = model.fit(x, y, batch_size=50, epochs=1, **more)
    result = {
        "weights": [variable.numpy() for variable in model.variables],
        "optimizer": [variable.numpy() for variable in model.optimizer.variables],
        "history": [first.history, second.history],
        "batches": faults.batches,
        "begun": faults.begun,
    }
    Path(f"result-{RANK}").write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    main()
