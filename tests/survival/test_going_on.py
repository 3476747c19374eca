"""A run that is resumed goes on as it was started, and an unfinished one is not put aside without a word."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from memfit.budgets.arena import arena_environment
from memfit.survival.run_directory import directory_of, open_directory
from memfit.survival.settings import RunSettings
from prepared import forking_environment

# The second fit() is planned after the run was resumed.
TRAINS = """
import pathlib, sys, time
import keras, numpy as np
keras.utils.set_random_seed(1)

class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.2)

model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(1024), keras.layers.Dense(1)], name="wide")
model.compile("sgd", "mse", jit_compile=False)
x, y = np.ones((1024, 64), "float32"), np.ones((1024, 1), "float32")
model.fit(x, y, batch_size=128, epochs=3, verbose=0, callbacks=[Slow()])
model.fit(x, y, batch_size=1024, verbose=0)
"""


class Folder:
    """A script in a folder, and `memfit run` of it in an arena."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        (folder / "train it.py").write_text(TRAINS)
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "MEMFIT_RUNS": str(folder / "runs"), **forking_environment()}
        self.environment = {**os.environ, **arena_environment("1GiB"), **quiet}
        self.directory = directory_of(folder / "train it.py", ["a b"], folder)

    def stop(self, *options: str) -> str:
        """Runs the script, stops it in its second epoch, and returns what was said."""
        position = self.directory / "position"
        position.unlink(missing_ok=True)  # of an earlier run
        begun = subprocess.Popen(
            [sys.executable, "-m", "memfit", "run", *options, "train it.py", "a b"],
            cwd=self.path,
            env=self.environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        while not position.exists() or position.read_bytes()[8] < 1:
            assert begun.poll() is None, begun.stderr and begun.stderr.read()
            time.sleep(0.1)
        begun.send_signal(signal.SIGINT)
        _, errors = begun.communicate()
        assert begun.returncode == 130
        return errors

    def run(self, *command: str) -> str:
        """Runs a command to its end, and returns what was said."""
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=self.path,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    def plans(self) -> list[tuple[int, str]]:
        """The memory and the fidelity that each fit() was planned for, the first one first."""
        records = [json.loads(file.read_text()) for file in (self.path / "runs").glob("*.json")]
        records.sort(key=lambda record: record["call"])
        return [(record["plan"]["memory"], record["allow"]) for record in records]


def command_in(said: str, words: str) -> list[str]:
    [line] = [line for line in said.splitlines() if words in line]
    return shlex.split(line.partition(words)[2])


def test_a_run_goes_on_with_the_settings_it_was_started_with(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    command = command_in(folder.stop("--memory", "300MiB", "--allow", "exact"), "To continue: ")
    told = ["memfit", "run", "--resume", "--memory", "300MiB", "--allow", "exact", "train it.py", "a b"]
    assert command == told
    said = folder.run("memfit", "run", "--resume", "train it.py", "a b")
    assert "memfit: resumed: continues after batch " in said
    assert folder.plans() == [(300 * 2**20, "exact")] * 2


def test_an_unfinished_run_that_is_started_anew_is_kept_and_said_to_be(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.stop("--memory", "300MiB")
    said = folder.stop("--memory", "200MiB")
    [line] = [line for line in said.splitlines() if "unfinished" in line]
    aside = os.path.relpath(f"{folder.directory}.old", tmp_path)
    assert line.startswith("memfit: An unfinished run of this script was found (stopped after batch ")
    assert f"of epoch 2). Its checkpoints are kept in {aside} until this new run has finished." in line
    assert line.endswith("memfit run --resume --memory 300MiB 'train it.py' 'a b'")
    assert list(Path(f"{folder.directory}.old").glob("*.npz"))
    # The newer one has a checkpoint of its own: it goes on, and leaves nothing.
    folder.run("memfit", "run", "--resume", "train it.py", "a b")
    assert folder.plans()[-1][0] == 200 * 2**20
    assert not (tmp_path / ".memfit").exists()


def opened(folder: Path, settings: RunSettings, *, resume: bool, kept: Sequence[str] = ()) -> RunSettings:
    script = folder / "train.py"
    script.write_text("")
    return open_directory(folder / "run.1", script, [], settings, resume=resume, kept=kept).settings


def test_an_unfinished_run_comes_back_where_the_new_one_has_no_checkpoint(tmp_path: Path) -> None:
    opened(tmp_path, RunSettings("1GiB"), resume=False)
    (tmp_path / "run.1" / "checkpoint-000001.npz").touch()
    opened(tmp_path, RunSettings("2GiB"), resume=False)
    assert (tmp_path / "run.1.old" / "checkpoint-000001.npz").exists()
    assert opened(tmp_path, RunSettings(), resume=True, kept=["memory"]).memory == "1GiB"
    assert (tmp_path / "run.1" / "checkpoint-000001.npz").exists()
    assert not (tmp_path / "run.1.old").exists()


def test_what_is_not_trained_yet_is_planned_anew_for_other_settings(tmp_path: Path) -> None:
    opened(tmp_path, RunSettings("1GiB", "exact"), resume=False)
    for name in ("plan-000.json", "fit-000.npz", "plan-001.json", "checkpoint-000001.npz"):
        (tmp_path / "run.1" / name).touch()
    assert opened(tmp_path, RunSettings("1GiB"), resume=True, kept=["allow"]).allow == "exact"
    assert (tmp_path / "run.1" / "plan-001.json").exists()
    assert opened(tmp_path, RunSettings("2GiB"), resume=True, kept=["allow"]) == RunSettings("2GiB", "exact")
    assert (tmp_path / "run.1" / "plan-000.json").exists()
    assert not (tmp_path / "run.1" / "plan-001.json").exists()
    # The next one keeps what this one was told.
    assert opened(tmp_path, RunSettings(), resume=True, kept=["memory"]).memory == "2GiB"
