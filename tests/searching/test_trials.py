"""`memfit.trials`: real trainings in real arenas; what ends one ends no other, and nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

import memfit
from memfit.searching.trial import Trials
from prepared import forking_environment

MIB = 2**20


def _end_somehow(how: str) -> object:
    if how == "zeros":
        import tensorflow as tf

        return float(tf.reduce_sum(tf.zeros([20, 2**18])))
    if how == "out of memory":
        import tensorflow as tf

        return tf.zeros([400, 2**18])
    if how == "raises":
        raise KeyError("the reason")
    if how == "exits":
        sys.exit(3)
    if how == "a lock":
        return threading.Lock()
    if how == "forks and dies":
        if os.fork() == 0:  # holds every pipe of its parent
            time.sleep(3600)
        os.kill(os.getpid(), signal.SIGSEGV)
    if how in ("SIGKILL", "SIGSEGV"):
        os.kill(os.getpid(), signal.Signals[how])
    return os.getpid(), os.getppid()


@pytest.fixture(scope="module")
def results() -> Trials:
    """Every way in which a trial may end, in the middle of others."""
    hows = [
        "pids",
        "zeros",
        "out of memory",
        "raises",
        "exits",
        "SIGKILL",
        "SIGSEGV",
        "forks and dies",
        "a lock",
    ]
    return memfit.trials(_end_somehow, [*hows, "pids"], memory="200MiB", parallel=1)


def test_an_out_of_memory_or_a_crash_is_a_result_and_the_others_go_on_in_order(results) -> None:
    assert [trial.setting for trial in results][:3] == ["pids", "zeros", "out of memory"]
    assert [trial.status for trial in results] == [
        *("done", "done", "out of memory", "failed", "failed", "died", "died", "died", "failed", "done"),
    ]
    assert results[1].value == 0.0
    assert "400 MiB asked for" in results[2].error
    assert "ResourceExhaustedError" in results[2].traceback
    assert results[3].error == "KeyError: 'the reason'"
    assert "in _end_somehow" in results[3].traceback
    assert results[4].error == "SystemExit: 3"
    assert "SIGKILL (usually the kernel's OOM killer" in results[5].error
    assert "SIGSEGV" in results[6].error
    assert "SIGSEGV" in results[7].error
    assert "must be picklable" in results[8].error


def test_peaks_are_measured(results) -> None:
    assert 20 * MIB <= results[1].peak < 40 * MIB
    assert results[5].peak is None
    assert {trial.need for trial in results} == {None}, "one at a time: nothing is reserved or predicted"


def test_results_are_a_table_and_plain_data(results) -> None:
    text = repr(results)
    assert "3 done, 1 out of memory, 3 failed, 3 died" in text
    assert "200 MiB (as asked, an arena)" in text
    assert "peak (measured)" in text
    told = json.loads(json.dumps(results.to_json()))
    assert told["trials"][1]["value"] == 0.0
    assert told["trials"][1]["peak"] == results[1].peak
    assert len(results) == len(told["trials"]) == 10
    assert "<pre" in results._repr_html_()


def test_every_trial_has_a_process_of_its_own_and_none_is_left(results) -> None:
    pids = {results[0].value, results[-1].value}
    assert len({pid for pid, _ in pids}) == 2
    _wait_until_gone([number for pair in pids for number in pair])


def _train(setting: tuple[int, str, str]) -> tuple[bool, float, float]:
    """Trains with activations of so many MiB; in its training it waits for another trial to train, too."""
    import keras
    import numpy as np

    mib, mine, other = setting
    met, begun = False, 0.0

    class Meet(keras.callbacks.Callback):
        def on_train_begin(self, logs: object = None) -> None:
            nonlocal begun
            begun = time.time()

        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            nonlocal met
            Path(mine).touch()
            deadline = time.monotonic() + 60
            while other and not met and time.monotonic() < deadline:
                met = Path(other).exists()
                time.sleep(0.02)

    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((1024, 1)), layers.Conv1D(32, 1, activation="tanh"), layers.GlobalAveragePooling1D()]
    )
    model.compile("sgd", "mse")
    samples = 4 * mib  # of 128 KiB after the convolution, two to four times of them at the peak
    model.fit(
        np.ones((samples, 1024, 1), "float32"), np.ones((samples, 32)), samples, verbose=0, callbacks=[Meet()]
    )
    return met, begun, time.time()


def test_as_many_run_side_by_side_as_predictions_say_fit(tmp_path: Path) -> None:
    a, b, c, d = (str(tmp_path / name) for name in "abcd")
    settings = [(8, a, b), (8, b, a), (40, c, ""), (40, d, "")]
    results = memfit.trials(_train, settings, memory="110MiB", parallel=4)
    assert [trial.status for trial in results] == ["done"] * 4, results
    assert [trial.value[0] for trial in results[:2]] == [True, True], (
        "the small ones trained at the same time"
    )
    assert {trial.need_source for trial in results} == {"predicted"}
    for trial in results:
        assert trial.peak <= trial.need, "what was reserved was enough"
    assert all(trial.need > 55 * MIB for trial in results[2:])
    (_, begun, ended), (_, begun_then, ended_then) = (trial.value for trial in results[2:])
    assert begun_then >= ended or begun >= ended_then, "the large ones trained one after the other"
    assert 0 < results.together <= 110 * MIB
    assert 2 <= results.side_by_side <= 4


def _allocate(setting: tuple[str, str]) -> bool:
    import tensorflow as tf

    mine, other = setting
    held = tf.zeros([30, 2**18])
    Path(mine).touch()
    deadline = time.monotonic() + 60
    while other and not Path(other).exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not other or Path(other).exists() or held is None


def test_trials_without_fit_are_measured_first_and_then_run_side_by_side(tmp_path: Path) -> None:
    a, b, c = (str(tmp_path / name) for name in "abc")
    results = memfit.trials(_allocate, [(a, ""), (b, c), (c, b)], memory="100MiB", parallel=3)
    assert [(trial.status, trial.value) for trial in results] == [("done", True)] * 3
    assert [trial.need_source for trial in results] == ["", "measured", "measured"]
    assert results[0].need is None
    assert 30 * MIB <= results[1].need < 50 * MIB
    assert results.side_by_side == 2


def _die_beside_others(setting: tuple[str, str]) -> str:
    mine, other = (Path(name) for name in setting)
    if other.name == "none":
        return "alone"
    if mine.exists():
        return "again"
    mine.touch()
    deadline = time.monotonic() + 60
    while not other.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    if mine.name == "b":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.5)
    return "beside"


def test_outside_of_an_arena_a_trial_that_was_killed_beside_others_is_run_again_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")  # forks can be had then
    a, b, c, none = (str(tmp_path / name) for name in ("a", "b", "c", "none"))
    results = memfit.trials(_die_beside_others, [(a, none), (b, c), (c, b)], parallel=2)
    assert [trial.value for trial in results] == ["alone", "again", "beside"]
    assert "free now: host" in results.memory_source
    assert all(trial.peak > 50 * MIB for trial in results), "the whole process counts"
    assert [trial.need_source for trial in results] == ["", "", "measured"]


def _fit_through_memfit(units: int) -> list[float]:
    import keras
    import numpy as np

    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(units), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

    def batches():
        for number in range(3):
            yield np.full((4, 8), number, "float32"), np.ones((4, 1), "float32")

    keras.utils.set_random_seed(1)
    memfit.fit(model, np.ones((8, 8), "float32"), np.ones((8, 1), "float32"), verbose=0)
    return model.fit(batches(), verbose=0, steps_per_epoch=3)


def test_memfit_fit_in_a_trial_reserves_what_its_plan_says_and_a_history_comes_back_as_figures() -> None:
    results = memfit.trials(_fit_through_memfit, [4, 8], memory="100MiB", parallel=2)
    assert [trial.status for trial in results] == ["done", "done"], [trial.traceback for trial in results]
    assert {trial.need_source for trial in results} == {"predicted"}
    assert list(results[0].value) == ["loss"]


def test_bad_input_is_one_sentence_each() -> None:
    for message, arguments in {
        "There must be at least one setting to try": (abs, []),
        "Trials need a function": (3, [1]),
        "A trial's setting must be picklable": (abs, [1, threading.Lock()]),
    }.items():
        with pytest.raises(memfit.InvalidInput, match=message):
            memfit.trials(*arguments)
    lock = threading.Lock()
    with pytest.raises(memfit.InvalidInput, match="A trial's function must be picklable"):
        memfit.trials(lambda setting: lock, [1])
    for parallel in (0, -1, 1.5, True):
        with pytest.raises(memfit.InvalidInput, match="`parallel` must be at least 1"):
            memfit.trials(abs, [1], parallel=parallel)
    with pytest.raises(memfit.InvalidInput, match="not a size"):
        memfit.trials(abs, [1], memory="lots")
    with pytest.raises(memfit.InvalidInput, match="for all trials together"):
        memfit.trials(abs, [1], memory="900TiB")


def test_an_interrupt_ends_every_process(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import os, signal, subprocess, sys, time
        from pathlib import Path
        import memfit

        # It is ignored where the tests run in the background.
        signal.signal(signal.SIGINT, signal.default_int_handler)

        def hang(number):
            other = subprocess.Popen(["sleep", "3600"])
            Path(os.environ["PIDS"], str(number)).write_text(
                f"{os.getpid()} {os.getppid()} {other.pid}"
            )
            if number == 0:
                return 0  # what it started is ended with it
            time.sleep(3600)

        memfit.trials(hang, range(4), memory="100MiB", parallel=2)
        """
    )
    environment = {**os.environ, **forking_environment(), "PIDS": str(tmp_path)}
    caller = subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stderr=subprocess.PIPE, text=True
    )
    # The first is measured by itself; it has no peak, so the others come one after the other.
    _wait_until(lambda: (tmp_path / "1").exists() and (tmp_path / "1").read_text())
    pids = [int(pid) for file in tmp_path.iterdir() for pid in file.read_text().split()]
    assert len(pids) == 6
    caller.send_signal(signal.SIGINT)
    _, told = caller.communicate(timeout=120)
    assert "KeyboardInterrupt" in told
    _wait_until_gone(pids)


def _wait_until(condition) -> None:
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it did not happen within two minutes")


def _wait_until_gone(pids: list[int]) -> None:
    def runs(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    _wait_until(lambda: not any(runs(pid) for pid in pids))


def test_many_trials_leave_nothing_in_the_process_that_starts_them() -> None:
    script = "import json; from trials.parent_memory import measure; print(json.dumps(measure(6, '100MiB')))"
    environment = {**os.environ, **forking_environment()}
    environment["PYTHONPATH"] += os.pathsep + str(Path(__file__).parents[2] / "benchmarks")
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    told = json.loads(done.stdout)
    assert told["after_all"] == pytest.approx(told["after_1"], rel=0.01)
