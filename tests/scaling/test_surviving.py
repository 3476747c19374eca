"""Ranks under `memfit run`: killed, frozen and failing ones, against the run in which nothing happens."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from scaling.forked_ranks import ForkedScript

from memfit.survival import supervising
from memfit.survival.settings import RunSettings

# Nothing is seeded, and nothing of it knows memfit. A file in `kills` says what happens to which rank, and when.
TRAINS = """
import json, os, pathlib, time
import numpy as np
import keras

rank = os.environ.get("MEMFIT_RANK", "0")

def meet_fate(moment):
    fate = pathlib.Path("kills") / f"{rank}-{moment}"
    if fate.exists():
        number = int(fate.read_text())
        fate.unlink()
        os.kill(os.getpid(), number)

class Witness(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen, self.begun, self.tested = [], 0, 0
    def on_train_batch_begin(self, batch, logs=None):
        self.begun += 1
        meet_fate(f"begin-{self.begun}")
    def on_train_batch_end(self, batch, logs=None):
        self.seen.append((batch, logs["loss"]))
        meet_fate(f"end-{len(self.seen)}")
    def on_test_batch_end(self, batch, logs=None):
        self.tested += 1
        meet_fate(f"test-{self.tested}")

layers = keras.layers
x, y = np.random.normal(size=(46, 6)), np.random.normal(size=(46, 1))
parts = [layers.Dense(8), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(1)]
model = keras.Sequential([keras.Input((6,)), *parts])
model.compile(keras.optimizers.Adam(clipnorm=1.0), "mse", metrics=["mae"])
witness = Witness()
slower = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9)
first = model.fit(
    x, y, batch_size=10, epochs=3, verbose=0, callbacks=[witness, slower], validation_split=0.3
)
second = model.fit(x, y, batch_size=10, epochs=1, verbose=0)
weights = [w.tolist() for w in model.get_weights()]
told = [first.history, second.history, witness.seen, witness.begun, weights]
pathlib.Path(f"result-{rank}.json").write_text(json.dumps(told))
"""


def _train(folder: Path, monkeypatch: pytest.MonkeyPatch, **kills: int) -> tuple[list[str], list[object]]:
    """Runs the script on two ranks to its end; returns what was told, and the result of each rank."""
    (folder / "kills").mkdir(parents=True)
    (folder / "train.py").write_text(TRAINS)
    for moment, number in kills.items():
        (folder / "kills" / moment.lstrip("_").replace("_", "-")).write_text(str(int(number)))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(supervising, "ScriptProcess", ForkedScript)
    lines: list[str] = []
    settings = RunSettings(seed=7, ranks=2, quiet=True, checkpoint_seconds=60.0)
    assert supervising.supervise("train.py", [], settings, tell=lines.append) == 0
    assert not any((folder / "kills").iterdir())
    assert not (folder / ".memfit").exists()
    assert not list(Path("/dev/shm").glob(f"memfit-{os.getuid()}-*"))
    return lines, [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        lines, results = _train(tmp_path_factory.mktemp("undisturbed"), monkeypatch)
    assert lines == []
    assert results[0] == results[1]
    return results


def test_killed_and_frozen_ranks_cost_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: list[object]
) -> None:
    kills = {"_1_begin_5": signal.SIGKILL, "_0_test_3": signal.SIGSTOP}
    lines, results = _train(tmp_path / "run", monkeypatch, **kills)
    told = [line for line in lines if not line.startswith("likely cause")]
    assert told == [
        "rank 1: SIGKILL in epoch 2, batch 1",
        "restart 1: goes on at the beginning of epoch 2",
        "rank 0: no answer in epoch 2, batch 5",
        "restart 2: goes on after batch 4 of epoch 2",
    ]
    assert results == undisturbed
