"""Ranks under `memfit run`: killed, frozen and failing ones, against the run in which nothing happens."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from memfit.scaling import launching, survivors
from memfit.scaling.launching import rank_environments
from memfit.survival import supervising
from memfit.survival.settings import RunSettings
from prepared import run_forked
from scaling.forked_ranks import ForkedScript

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


def _train(
    folder: Path, monkeypatch: pytest.MonkeyPatch, script: str = TRAINS, seconds: float = 60.0, **kills: int
) -> tuple[list[str], list[object]]:
    """Runs the script on two ranks to its end; returns what was told, and the result of each rank."""
    (folder / "kills").mkdir(parents=True)
    (folder / "train.py").write_text(script)
    for moment, number in kills.items():
        (folder / "kills" / moment.lstrip("_").replace("_", "-")).write_text(str(int(number)))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(supervising, "ScriptProcess", ForkedScript)
    lines: list[str] = []
    settings = RunSettings(seed=7, ranks=2, quiet=True, checkpoint_seconds=seconds)
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
        "restart 1: continues at the beginning of epoch 2",
        "rank 0: no answer in epoch 2, batch 5",
        "restart 2: continues after batch 4 of epoch 2",
    ]
    assert results == undisturbed


def test_a_rank_that_is_lost_within_a_step_of_others_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = TRAINS.replace("BatchNormalization()", "BatchNormalization(synchronized=True)")
    _, expected = _train(tmp_path / "undisturbed", monkeypatch, script)
    lines, results = _train(tmp_path / "run", monkeypatch, script, _1_begin_7=signal.SIGKILL)
    assert [line for line in lines if not line.startswith("likely cause")] == [
        "rank 1: SIGKILL in epoch 2, batch 3",
        "restart 1: continues after batch 2 of epoch 2",
    ]
    assert results == expected


# Every rank keeps a part of the optimizer's state, as a plan with `shard_optimizer` may ask for.
SHARDED = TRAINS.replace(
    "first = model.fit(\n    x, y,",
    """import memfit
from dataclasses import replace
from memfit.planning.fidelity import Fidelity
from memfit.steps.sharded_state import ShardedState
from training.parity import levers

plan = replace(levers(model, 5, changes=(ShardedState(2),)), fidelity=Fidelity.NEAR)
first = memfit.fit(
    model, x, y, plan=plan,""",
)


def test_a_rank_that_takes_a_part_of_the_optimizer_with_it_costs_the_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: list[object]
) -> None:
    assert "ShardedState(2)" in SHARDED
    lines, results = _train(tmp_path / "run", monkeypatch, SHARDED, 0.0, _1_begin_7=signal.SIGKILL)
    told = [line for line in lines if not line.startswith("likely cause")]
    assert told == [
        "rank 1: SIGKILL in epoch 2, batch 3",
        "restart 1: continues at the beginning of epoch 2",
    ]
    assert results == undisturbed


def _supervise(folder: str) -> int:
    """One rank of a cluster that memfit did not start, with a supervisor of its own."""
    os.chdir(folder)
    supervising.ScriptProcess = ForkedScript  # type: ignore[assignment, misc]
    return supervising.supervise("train.py", [], RunSettings(seed=7, quiet=True, checkpoint_seconds=60.0))


def test_ranks_of_a_found_cluster_go_on_from_the_newest_state_of_any_machine(
    tmp_path: Path, undisturbed: list[object]
) -> None:
    config = rank_environments(2)
    folders = [tmp_path / f"machine{rank}" for rank in range(2)]
    for folder in folders:
        (folder / "kills").mkdir(parents=True)
        (folder / "train.py").write_text(TRAINS)
    (folders[0] / "kills" / "0-end-6").write_text(str(int(signal.SIGKILL)))
    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(
                run_forked,
                _supervise,
                str(folder),
                TF_ENABLE_ONEDNN_OPTS="0",
                TF_CONFIG=config[rank]["TF_CONFIG"],
            )
            for rank, folder in enumerate(folders)
        ]
        assert [run.result() for run in runs] == [0, 0]
    results = [
        json.loads((folder / f"result-{rank}.json").read_text()) for rank, folder in enumerate(folders)
    ]
    assert results == undisturbed
    assert not any((folder / ".memfit").exists() for folder in folders)


def _launch(folder: Path) -> tuple["subprocess.Popen[bytes]", list[psutil.Process]]:
    """Starts a script that only waits, on three ranks, as a person would; returns its processes, too."""
    (folder / "wait.py").write_text(
        "import os, pathlib, time\npathlib.Path(os.environ['MEMFIT_RANK']).touch()\ntime.sleep(600)"
    )
    command = [sys.executable, "-m", "memfit", "run", "--ranks", "3", "wait.py"]
    launcher = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)
    while not all((folder / str(rank)).exists() for rank in range(3)):
        assert launcher.poll() is None
        time.sleep(0.05)
    return launcher, psutil.Process(launcher.pid).children(recursive=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_its_launcher(tmp_path: Path, number: signal.Signals) -> None:
    launcher, ranks = _launch(tmp_path)
    assert len(ranks) == 3
    launcher.send_signal(number)
    launcher.wait(60)
    assert psutil.wait_procs(ranks, timeout=60)[1] == []


def test_a_rank_that_fails_ends_the_others_and_the_run(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(
        "import os, sys, time\nprint('rank', os.environ['MEMFIT_RANK'])\n"
        "if os.environ['MEMFIT_RANK'] == '1': sys.exit('no such data')\ntime.sleep(600)"
    )
    command = [sys.executable, "-m", "memfit", "run", "--ranks", "2", "fails.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 1
    assert "rank 1" not in ended.stdout
    assert "[rank 1] no such data" in ended.stderr


def test_with_elastic_a_job_goes_on_without_a_rank_that_always_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dies.py").write_text(
        "import os, signal, time\nrank = os.environ.get('MEMFIT_RANK')\n"
        "if rank == '1': os.kill(os.getpid(), signal.SIGKILL)\nif rank == '0': time.sleep(600)"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launching, "_NOTICE", 0.5)
    lines: list[str] = []
    settings = RunSettings(ranks=2, elastic=True, quiet=True)
    assert supervising.supervise("dies.py", [], settings, tell=lines.append) == 0
    told = [line.split(" (--elastic)")[0] for line in lines if not line.startswith("likely cause")]
    assert told[-3:] == [
        "rank 1: SIGKILL before the training began",
        "restart 3: continues from the beginning, as there was no checkpoint yet",
        "continues with 1 rank",
    ]
    settings = RunSettings(ranks=2, quiet=True)
    assert supervising.supervise("dies.py", [], settings, tell=lines.append) == 128 + signal.SIGKILL


def test_a_rank_does_not_wait_for_ever_for_others_that_do_something_else() -> None:
    code = """
import time
from memfit.scaling import survivors
survivors.TOLD_AFTER, survivors.ENDED_AFTER, survivors.LOOKED_AFTER = 0.1, 0.3, 0.05
with survivors.meeting_others():
    time.sleep(60)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == survivors.STOOD_STILL
    assert "they are running, but do something else" in ended.stderr
