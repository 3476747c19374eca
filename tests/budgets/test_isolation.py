import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from memfit import InvalidInput, ProcessDied, isolated


def _zeros(mib: int) -> float:
    import tensorflow as tf

    return float(tf.reduce_sum(tf.zeros([mib, 2**18])))


def test_results_come_back_from_another_process() -> None:
    assert isolated(lambda a, b: (a + b, os.getpid()), 1, 2)[0] == 3
    assert isolated(os.getpid) != os.getpid()


def test_a_large_result_comes_back_whole() -> None:
    assert len(isolated(lambda size: b"x" * size, 5_000_000)) == 5_000_000


def test_exceptions_come_back_with_the_childs_traceback() -> None:
    def fails() -> None:
        raise KeyError("the reason")

    with pytest.raises(KeyError, match="the reason") as caught:
        isolated(fails)
    assert "in fails" in str(caught.value.__cause__)


def test_an_exception_that_cannot_be_sent_comes_back_as_its_plain_base() -> None:
    def fails() -> None:
        class OddError(ValueError):
            def __init__(self, one: object, two: object) -> None:
                super().__init__(f"{one} and {two}")

        raise OddError(1, lambda: None)

    with pytest.raises(ValueError, match="OddError: 1 and"):
        isolated(fails)


def test_a_real_oom_in_the_arena_is_tensorflows_own_error_and_a_smaller_tensor_fits() -> None:
    import tensorflow as tf

    assert isolated(_zeros, 100, memory="200MiB") == 0.0
    with pytest.raises(tf.errors.ResourceExhaustedError, match="OOM when allocating"):
        isolated(_zeros, 400, memory="200MiB")


@pytest.mark.parametrize(
    ("number", "meaning"),
    [(signal.SIGKILL, "kernel's OOM killer"), (signal.SIGSEGV, "check its allocations")],
)
def test_death_by_signal_names_the_signal_and_its_usual_meaning(number: int, meaning: str) -> None:
    with pytest.raises(ProcessDied, match=meaning) as caught:
        isolated(lambda: os.kill(os.getpid(), number))
    assert caught.value.signal == number


def test_an_exit_without_a_result_is_a_death_too() -> None:
    with pytest.raises(ProcessDied, match="exit code 7"):
        isolated(os._exit, 7)


def test_a_timeout_ends_the_whole_process_group(tmp_path: Path) -> None:
    def starts_another(file: Path) -> None:
        other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        file.write_text(str(other.pid))
        time.sleep(3600)

    with pytest.raises(
        TimeoutError, match="within 5 s"
    ):  # a loaded machine starts an interpreter in this time
        isolated(starts_another, tmp_path / "pid", timeout=5)
    pid = int((tmp_path / "pid").read_text())
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.05)  # pytest's own timeout ends this if the grandchild stays alive


def test_a_forked_grandchild_that_stays_alive_does_not_hold_the_result_back() -> None:
    def forks() -> int:
        grandchild = os.fork()
        if grandchild == 0:
            time.sleep(3600)
            os._exit(0)
        return grandchild

    grandchild = psutil.Process(isolated(forks))
    assert grandchild.is_running()
    grandchild.kill()


def test_what_cannot_be_sent_is_refused_with_a_remedy() -> None:
    lock = threading.Lock()
    with pytest.raises(InvalidInput, match="arguments must be picklable"):
        isolated(lambda: lock)
    with pytest.raises(InvalidInput, match="result of an isolated function must be picklable"):
        isolated(lambda: (number for number in range(3)))
    with pytest.raises(InvalidInput, match="positive number of seconds"):
        isolated(os.getpid, timeout=0)
    with pytest.raises(InvalidInput, match="not a size"):
        isolated(os.getpid, memory="lots")
