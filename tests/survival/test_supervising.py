"""`memfit run` with real processes, real kills and real checkpoints, against the run in which nothing happens."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from memfit.errors import InvalidInput
from memfit.survival.crashes import count_kernel_kills, explain_crash, judge_exit
from memfit.survival.run_directory import directory_of
from memfit.survival.settings import RunSettings
from memfit.survival.supervising import supervise

# All runs of a test draw the same numbers, and save as often as they can.
SETTINGS = RunSettings(checkpoint_seconds=0.0, seed=7)

# Two calls of fit(), nothing seeded: what the script draws at random must come again in the next process.
TRAINS = """
import json, os, pathlib, random, signal, sys, time
import numpy as np
import keras

class Witness(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []
    def on_train_batch_end(self, batch, logs=None):
        self.seen.append((batch, logs["loss"]))
        time.sleep(0.02)
        kill = pathlib.Path("kills") / str(len(self.seen))
        if kill.exists():
            number = int(kill.read_text())
            kill.unlink()
            os.kill(os.getpid(), number)

x, y = np.random.normal(size=(64, 6)), np.random.normal(size=(64, 1))
layers = keras.layers
parts = [layers.Dense(8), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(1)]
model = keras.Sequential([keras.Input((6,)), *parts])
model.compile("adam", "mse")
witness = Witness()
first = model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[witness], validation_split=0.125)
second = model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[Witness()])
weights = [w.tolist() for w in model.get_weights()]
labels = list({"cat", "dog", "bird", "fish"})
told = [first.history, second.history, witness.seen, weights, model.evaluate(x, y, verbose=0), labels, sys.argv[1:]]
pathlib.Path("result.json").write_text(json.dumps(told))
print("done", random.random())
sys.exit(int(sys.argv[1]))
"""


def script(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "kills").mkdir(exist_ok=True)
    (folder / "train.py").write_text(text)
    return folder / "train.py"


def trained(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    """Runs the script to its end."""
    monkeypatch.chdir(folder)
    lines: list[str] = []
    code = supervise("train.py", ["0"], SETTINGS, tell=lines.append)
    return code, lines


_TOLD_OF_KILL = [
    "SIGKILL in epoch 1, batch 9",
    "likely cause: kill -9 or a scheduler; the kernel counted no OOM kill",
    "restart 1: continues at its checkpoint",
]
_TOLD_OF_CRASH = [
    "SIGSEGV in epoch 2, batch 6",
    "likely cause: a crash in native code (the lines above may say more)",
    "restart 2: continues at its checkpoint",
]


@pytest.mark.parametrize(
    ("kills", "told"),
    [
        ({9: signal.SIGKILL}, _TOLD_OF_KILL),
        ({9: signal.SIGKILL, 20: signal.SIGSEGV}, _TOLD_OF_KILL + _TOLD_OF_CRASH),
    ],
    ids=["a kill", "a kill and a crash"],
)
def test_kills_and_crashes_cost_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: dict[int, int], told: list[str]
) -> None:
    script(tmp_path / "undisturbed", TRAINS)
    script(tmp_path / "killed", TRAINS)
    for batch, number in kills.items():
        (tmp_path / "killed" / "kills" / str(batch)).write_text(str(int(number)))
    assert trained(tmp_path / "undisturbed", monkeypatch) == (0, [])
    code, lines = trained(tmp_path / "killed", monkeypatch)
    assert code == 0
    # Which checkpoint was whole when the process died depends on how fast the disk is.
    position = r"(after batch \d+|at the beginning) of epoch \d"
    assert [re.sub(position, "at its checkpoint", line) for line in lines] == told
    results = [
        json.loads((tmp_path / name / "result.json").read_text()) for name in ("undisturbed", "killed")
    ]
    assert results[0] == results[1]
    assert len(results[0][2]) == 28
    assert not (tmp_path / "killed" / ".memfit").exists()  # a run that ended leaves nothing


def test_ctrl_c_leaves_a_checkpoint_and_the_command_that_goes_on_from_it(tmp_path: Path) -> None:
    script(tmp_path, TRAINS.replace("0.02", "0.15"))
    command = [sys.executable, "-m", "memfit", "run"]
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    begun: Any = subprocess.Popen(
        [*command, "train.py", "3", "--option"], cwd=tmp_path, env=quiet, stderr=subprocess.PIPE, text=True
    )
    position = directory_of(tmp_path / "train.py", ["3", "--option"], tmp_path) / "position"
    while not position.exists() or position.read_bytes()[16] < 3:
        assert begun.poll() is None
        time.sleep(0.1)
    begun.send_signal(signal.SIGINT)
    _, errors = begun.communicate()
    assert begun.returncode == 130
    assert "memfit: To continue: memfit run --resume train.py 3 --option" in errors
    assert not (tmp_path / "result.json").exists()

    changed = subprocess.run(
        [*command, "--resume", "train.py", "3", "--other"],
        cwd=tmp_path,
        env=quiet,
        capture_output=True,
        text=True,
    )
    assert "There is no checkpoint of this script with these arguments" in changed.stderr

    resumed = subprocess.run(
        [*command, "--resume", "train.py", "3", "--option"],
        cwd=tmp_path,
        env=quiet,
        capture_output=True,
        text=True,
    )
    assert resumed.returncode == 3  # the script's own
    assert resumed.stdout.startswith("done")
    assert len(json.loads((tmp_path / "result.json").read_text())[2]) == 28

    text = (tmp_path / "train.py").read_text()
    (tmp_path / "train.py").write_text(text + "\n# another script now")
    refused = subprocess.run(
        [*command, "--resume", "train.py", "3", "--option"],
        cwd=tmp_path,
        env=quiet,
        capture_output=True,
        text=True,
    )
    assert refused.returncode == 2
    assert "the script has changed" in refused.stderr


ALWAYS_DIES = """
import os, signal, sys
print("OOM when allocating tensor with shape[64,112,112,64] and type float on /job:localhost/replica:0/task:0/"
      "device:GPU:0 by allocator GPU_0_bfc", file=sys.stderr)
os.kill(os.getpid(), signal.SIGABRT)
"""


def test_crashing_without_progress_ends_with_a_diagnosis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    script(tmp_path, ALWAYS_DIES)
    code, lines = trained(tmp_path, monkeypatch)
    assert code == 128 + signal.SIGABRT
    assert lines[0] == lines[3] == "SIGABRT before the training began"
    assert (
        lines[1]
        == lines[4]
        == "likely cause: out of memory, according to TensorFlow's last lines (see the lines above)"
    )
    from_beginning = "continues from the beginning, as there was no checkpoint yet"
    assert lines[2] == f"restart 1 with a plan for less memory: {from_beginning}"
    assert lines[6] == "SIGABRT before the training began, 3 times without progress"
    assert any("196 MiB" in line for line in lines[7:])
    assert capfd.readouterr().err.count("OOM when allocating") == 3  # the script's own lines pass through


FAILS = """
import multiprocessing, sys

def square(number):
    return number * number

def check(number):
    assert number == 9, "the script's own"

if __name__ == "__main__":
    for way in ("fork", "spawn"):
        pool = multiprocessing.get_context(way).Pool(2)
        print(pool.map(square, [1, 2]))
        pool.close()  # leaving a `with` would terminate it, which now and then hangs
        pool.join()
    print(__file__, sys.argv, sys.path[0], file=sys.stderr)
    check(8)
"""


def test_a_script_that_fails_by_itself_looks_as_without_memfit(tmp_path: Path) -> None:
    script(tmp_path, FAILS)
    plain, led = (
        subprocess.run(
            [sys.executable, *way, "train.py", "--memory", "3"], cwd=tmp_path, capture_output=True, text=True
        )
        for way in ([], ["-m", "memfit", "run"])
    )
    assert "the script's own" in plain.stderr
    assert (led.returncode, led.stdout, led.stderr) == (plain.returncode, plain.stdout, plain.stderr)


UNTOLD = """
import keras, numpy as np, tensorflow as tf
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(500), keras.layers.Dense(500)])
model.compile("sgd", "mse", jit_compile=False)
def batches():
    yield np.ones((8, 4), "float32"), np.ones((8, 500), "float32")
specs = tf.TensorSpec((None, 4)), tf.TensorSpec((None, 500))
data = tf.data.Dataset.from_generator(batches, output_signature=specs).repeat()
print(len(model.fit(data, steps_per_epoch=2, shuffle=False, verbose=0).history["loss"]))
model.add(keras.layers.Dense(500))
model.compile("sgd", "mse", jit_compile=False)
model.fit(np.ones((8, 4)), np.ones((8, 500)))
"""


def test_a_script_trains_where_nothing_can_be_told_of_it_and_sees_only_its_own_frames_where_it_is_refused(
    tmp_path: Path,
) -> None:
    script(tmp_path, UNTOLD)
    command = [sys.executable, "-m", "memfit", "run", "--memory", "1500KiB", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "1\n"
    assert (
        "memfit: Trained as stock Keras, because no plan could be made: The batch size is not known"
        in done.stderr
    )
    told = done.stderr[done.stderr.index("Traceback") :].splitlines()
    told = [line for line in told if not line.startswith("memfit: ")]  # what became of the first fit()
    assert 'train.py", line 12, in <module>' in told[1]
    assert told[-1].startswith("memfit.errors.InvalidInput: The weights alone take 1.9 MiB")
    assert not any("memfit/training" in line for line in told)
    assert done.returncode == 1


BROKEN = """
import keras, numpy as np
import memfit.training.plan_choice

def make_plan(*args, **kwargs):
    raise KeyError("a bug")

memfit.training.plan_choice.make_plan = make_plan
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5)])
model.compile("sgd", "mse", jit_compile=False)
print(len(model.fit(np.ones((8, 4)), np.ones((8, 5)), verbose=0).history["loss"]))
"""


@pytest.mark.parametrize("options", [[], ["--memory", "1GiB"], ["--strict"]])
def test_a_bug_in_planning_is_a_warning_and_ends_a_strict_run(tmp_path: Path, options: list[str]) -> None:
    script(tmp_path, BROKEN)
    outside_of_tests = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    command = [sys.executable, "-m", "memfit", "run", *options, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=outside_of_tests, capture_output=True, text=True)
    assert "KeyError: 'a bug'" in done.stderr
    assert ("bug in memfit, please report it" in done.stderr) == (options != ["--strict"])
    assert (done.returncode, done.stdout) == ((1, "") if options == ["--strict"] else (0, "1\n"))


def test_what_cannot_be_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="no such script"):
        supervise("nothing.py")
    script(tmp_path, "print(1)")
    with pytest.raises(InvalidInput, match="not a size"):
        supervise("train.py", settings=RunSettings(memory="a lot"))
    (tmp_path / ".memfit").write_text("a file where the directory should be")
    with pytest.raises(InvalidInput, match="can be written"):
        supervise("train.py")


def test_memory_is_the_cause_only_where_there_is_evidence(tmp_path: Path) -> None:
    quiet = {"said_memory": False, "killed_for_memory": False}
    killed = judge_exit(-signal.SIGKILL, "", **quiet)
    assert killed is not None
    assert not killed.memory
    by_kernel = judge_exit(137, "", said_memory=False, killed_for_memory=True)
    assert by_kernel is not None
    assert by_kernel.memory
    assert judge_exit(1, "ValueError: x", **quiet) is None
    assert judge_exit(-signal.SIGTERM, "", **quiet) is None
    raised = judge_exit(1, "", said_memory=True, killed_for_memory=False)
    assert raised is not None
    assert raised.memory
    crashed = judge_exit(-signal.SIGSEGV, "", **quiet)
    assert crashed is not None
    assert not crashed.memory
    assert explain_crash(crashed, "").cause == "segfault"
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/vmstat").write_text("oom_kill 3\nother 5\n")
    assert count_kernel_kills(tmp_path) == 3
