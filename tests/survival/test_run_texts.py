"""What `memfit run` says: the whole text for a fitting job, a near plan, a refusal, a shortage, a kill and a loop.

Figures that depend on the machine are replaced by words; every line of memfit's is compared.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from memfit.budgets.arena import arena_environment
from memfit.cli.run import _show, _tell
from memfit.survival.run_records import RunRecords
from memfit.survival.settings import RunSettings, record_id
from memfit.survival.supervising import supervise
from memfit.training.records.files import read_records, write_record
from prepared import forking_environment

_FIGURES = (
    (r"\S*\.json", "FILE"),
    (r"\d+(\.\d+)? (B|[KMG]iB)\b", "SIZE"),
    (r"\d+(\.\d+)? (s|ms|min)\b", "TIME"),
    (r"\b\d+\.\d+x", "N.NNx"),
    (r", \+\d+% time", ""),
    (r"\b[0-9a-f]{6}\b(?=, FILE|$)", "ID"),
    (r"\b\d+ of \d+\b", "N of N"),
    (r"as an HTML page: .*", "as an HTML page: COMMAND"),
    # Whether a plan takes this one as well is a matter of a few MiB that two recordings differ by.
    (r"memfit:   inputs on the host: .*\n", ""),
)

WIDE = """
import keras, numpy as np
keras.utils.set_random_seed(1)
layers = keras.layers
parts = [layers.Dense(1024), NORMALISED layers.Activation("relu"), layers.Dense(1)]
model = keras.Sequential([keras.Input((64,)), *parts], name="wide")
model.compile("sgd", "mse", jit_compile=False)
x, y = np.ones((4096, 64), "float32"), np.ones((4096, 1), "float32")
model.fit(x, y, batch_size=4096, epochs=2, verbose=0)
"""
NORMALISED = WIDE.replace("NORMALISED", "layers.BatchNormalization(),")
PLAIN = WIDE.replace("NORMALISED", "")


def run(folder: Path, text: str, *options: str, arena: str = "1GiB") -> "subprocess.CompletedProcess[str]":
    """Runs a script that knows nothing of memfit in an arena."""
    (folder / "train.py").write_text(text)
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "MEMFIT_RUNS": str(folder / "runs"), **forking_environment()}
    return subprocess.run(
        [sys.executable, "-m", "memfit", "run", *options, "train.py"],
        cwd=folder,
        env={**os.environ, **arena_environment(arena), **quiet},
        capture_output=True,
        text=True,
        check=False,
    )


def told(errors: str) -> str:
    """What memfit says, without figures; progress is left out, which depends on the time it takes."""
    lines = [line for line in errors.splitlines() if line.startswith("memfit: ")]
    text = "\n".join(line for line in lines if not line.startswith("memfit: planning, "))
    for pattern, word in _FIGURES:
        text = re.sub(pattern, word, text, flags=re.MULTILINE)
    return text


def test_a_job_that_fits(tmp_path: Path) -> None:
    done = run(tmp_path, PLAIN + "print('the script')", "--memory", "900MiB")
    assert (done.returncode, done.stdout) == (0, "the script\n")
    assert told(done.stderr) == (
        "memfit: fit(): wide, batch 4096, 2 epochs, in SIZE\n"
        "memfit: stock Keras: peak SIZE (at most); fits, nothing is changed\n"
        "memfit: wide, batch 4096: finished\n"
        "memfit:   peak      SIZE measured, SIZE at most\n"
        "memfit:   process   SIZE measured, SIZE at most on the host\n"
        "memfit:   time      TIME\n"
        "memfit:   events    none\n"
        "memfit:   restarts  none\n"
        "memfit:   record    ID, FILE\n"
        "memfit: as an HTML page: COMMAND"
    )
    [(_, record)] = read_records(tmp_path / "runs")
    assert (record.outcome, record.command, record.script, record.call) == (
        "finished",
        "memfit run",
        "train.py",
        0,
    )
    assert (record.epoch, record.steps, len(record.of_kind("epoch"))) == (1, 2, 2)
    assert "\x1b" not in done.stderr


def test_a_near_plan_is_announced_as_not_exact(tmp_path: Path) -> None:
    done = run(tmp_path, NORMALISED, "--memory", "48MiB", arena="64MiB")
    assert done.returncode == 0
    assert re.search(r"^memfit: planning, \d+ s: recording stock Keras's step", done.stderr, re.MULTILINE)
    assert told(done.stderr) == (
        "memfit: fit(): wide, batch 4096, 2 epochs, in SIZE\n"
        "memfit: stock Keras: peak SIZE (predicted); does not fit\n"
        "memfit: plan: near, peak SIZE, N.NNx stock's time (predicted); took TIME\n"
        "memfit:   micro-batches: N of N samples (near, -SIZE)\n"
        "memfit: NOT EXACT: batch statistics over fewer samples in batch_normalization. "
        "To refuse that: --allow exact\n"
        "memfit: wide, batch 4096: finished\n"
        "memfit:   peak      SIZE measured, SIZE predicted (stock Keras SIZE)\n"
        "memfit:   process   SIZE measured, SIZE predicted on the host\n"
        "memfit:   time      TIME, N.NNx stock Keras's time (predicted)\n"
        "memfit:   events    none\n"
        "memfit:   restarts  none\n"
        "memfit:   record    ID, FILE\n"
        "memfit: as an HTML page: COMMAND"
    )


def test_a_refusal_advises_flags_and_shows_the_script_s_own_line(tmp_path: Path) -> None:
    done = run(tmp_path, NORMALISED, "--memory", "48MiB", "--allow", "exact")
    assert done.returncode == 1
    assert told(done.stderr) == (
        "memfit: wide, batch 4096: refused\nmemfit:   record  ID, FILE\nmemfit: as an HTML page: COMMAND"
    )
    lines = done.stderr[done.stderr.index("Traceback") :].splitlines()
    assert 'train.py", line 9, in <module>' in lines[1]
    assert "With --allow near this batch would fit." in lines[3]
    advised = re.search(r"run again with --memory (\d+MiB)\.$", lines[3])
    assert advised is not None
    assert run(tmp_path, NORMALISED, "--memory", advised[1], "--allow", "exact").returncode == 0


def test_a_shortage_is_told_when_it_happens_and_counted_at_the_end(tmp_path: Path) -> None:
    done = run(tmp_path, PLAIN, "--memory", "900MiB", arena="28MiB")
    assert done.returncode == 0
    said = told(done.stderr).splitlines()
    assert said[:2] == [
        "memfit: fit(): wide, batch 4096, 2 epochs, in SIZE",
        "memfit: stock Keras: peak SIZE (at most); fits, nothing is changed",
    ]
    shortages = [line for line in said[2:] if line.startswith("memfit: Out of memory in training, batch 1: ")]
    assert "failed to allocate SIZE for layer `" in shortages[0]
    assert "free afterwards. Rolled back, and trained again in micro-batches of " in shortages[0]
    times = {1: "once", 2: "twice"}.get(len(shortages), f"{len(shortages)} times")
    assert said[2 + len(shortages) :] == [
        "memfit: wide, batch 4096: finished",
        "memfit:   peak      SIZE measured, SIZE at most",
        "memfit:   process   SIZE measured, SIZE at most on the host",
        "memfit:   time      TIME",
        f"memfit:   events    out of memory {times}",
        "memfit:   restarts  none",
        "memfit:   record    ID, FILE",
        "memfit: as an HTML page: COMMAND",
    ]
    [(_, record)] = read_records(tmp_path / "runs")
    assert record.of_kind("out of memory")[0].epoch == 0
    assert record.device_peak is not None


KILLED = """
import os, pathlib, signal, time
import keras, numpy as np

class Kill(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.1)
        if batch == 5 and pathlib.Path("kill").exists():
            pathlib.Path("kill").unlink()
            os.kill(os.getpid(), signal.SIGKILL)

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)], name="small")
model.compile("sgd", "mse", jit_compile=False)
model.fit(np.ones((32, 4)), np.ones((32, 2)), batch_size=4, verbose=0, callbacks=[Kill()])
"""


def test_a_kill_says_the_signal_the_likely_cause_and_where_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MEMFIT_RUNS", str(tmp_path / "runs"))
    (tmp_path / "train.py").write_text(KILLED)
    (tmp_path / "kill").touch()
    settings = RunSettings(checkpoint_seconds=0.0, seed=1)
    assert supervise("train.py", settings=settings, tell=_tell, report=_show) == 0
    text = re.sub(r"after batch \d", "after batch N", told(capfd.readouterr().err))
    assert text == (
        "memfit: fit(): small, batch 4, 1 epoch, in SIZE (free now)\n"
        "memfit: stock Keras: peak SIZE (at most); fits, nothing is changed\n"
        "memfit: SIGKILL in epoch 1, batch 6\n"
        "memfit: likely cause: kill -9 or a scheduler; the kernel counted no OOM kill\n"
        "memfit: restart 1: continues after batch N of epoch 1\n"
        "memfit: small, batch 4: finished\n"
        "memfit:   peak      SIZE at most, not counted on CPU:0\n"
        "memfit:   process   SIZE measured, SIZE at most on the host\n"
        "memfit:   time      TIME, TIME a step\n"
        "memfit:   events    none\n"
        "memfit:   restarts  1\n"
        "memfit:   record    ID, FILE\n"
        "memfit: as an HTML page: COMMAND"
    )
    [(_, record)] = read_records(tmp_path / "runs")
    assert (record.restarts, record.outcome) == (1, "finished")
    assert [mark.kind for mark in record.marks if mark.kind != "checkpoint"] == ["death", "restart", "epoch"]
    assert 2 <= record.steps <= 9  # those of the last two seconds before the kill are not in the file


LOOP = """
import keras, numpy as np, tensorflow as tf
model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32)])
optimizer = keras.optimizers.SGD()

@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = keras.ops.mean(model(x) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

for _ in range(3):
    step(np.ones((8, 64), "float32"))
print("trained")
"""


def test_a_loop_without_fit_is_measured_and_said_not_to_be_changed(tmp_path: Path) -> None:
    done = run(tmp_path, LOOP, "--memory", "1KiB")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert told(done.stderr) == (
        "memfit: train.py, line 13: trains in a custom loop, not with fit()\n"
        "memfit: memfit cannot change such a loop: no plan, no checkpoints, no limit\n"
        "memfit: to get a plan and the guard, put @memfit.gradients(variables) on the loss function\n"
        "memfit: it measures the loop's memory against SIZE, and explains an out-of-memory error\n"
        "memfit: for a breakdown of its peak, and what would help: memfit estimate train.py\n"
        "memfit: custom loop: finished\n"
        "memfit:   peak      SIZE measured, SIZE over the budget of SIZE\n"
        "memfit:   process   SIZE measured on the host\n"
        "memfit:   time      TIME\n"
        "memfit:   events    none\n"
        "memfit:   restarts  none\n"
        "memfit:   record    ID, FILE\n"
        "memfit: as an HTML page: COMMAND"
    )
    [(_, record)] = read_records(tmp_path / "runs")
    assert (record.outcome, record.call) == ("finished", -1)
    # As a watched script does at its end.
    write_record(replace(record, id=record_id("watched", 0)), tmp_path / "runs")
    RunRecords(tmp_path / "runs", "watched").note_leaks(["host memory grows"])
    [(_, watched)] = RunRecords(tmp_path / "runs", "watched").read()
    assert [mark.says for mark in watched.of_kind("leak")] == ["host memory grows"]


def test_quiet_says_nothing_and_json_is_one_line_behind_the_script_s_output(tmp_path: Path) -> None:
    quiet = run(tmp_path, PLAIN + "print('the script')", "--quiet")
    assert (quiet.stdout, told(quiet.stderr)) == ("the script\n", "")
    as_json = run(tmp_path, "import sys; print('the script'); sys.exit(3)", "--json")
    script, line = as_json.stdout.splitlines()
    assert script == "the script"
    assert json.loads(line) == {"exit_code": 3, "runs": []}
    assert as_json.returncode == 3


def test_a_custom_loop_that_runs_out_of_memory_is_explained_and_not_started_again(tmp_path: Path) -> None:
    raises = LOOP.replace(
        "keras.ops.mean(model(x) ** 2)", "keras.ops.mean(model(tf.repeat(x, 2**20, 0)) ** 2)"
    )
    done = run(tmp_path, raises, arena="64MiB")
    assert done.returncode == 1
    said = told(done.stderr).splitlines()
    assert said[5] == "memfit: out of memory in a loop that memfit cannot change"
    assert said[6].startswith(
        "memfit: likely cause: a step, or something else in memory, needs more than is available"
    )
    assert said[6].endswith("(the error above says what asked for memory)")
    assert "restart 1" not in done.stderr
    assert "memfit: custom loop: died" in done.stderr
