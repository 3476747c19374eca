"""Processes that begin with their imports done."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from memfit.budgets.fork_server import ForkServer
from memfit.errors import InvalidInput, ProcessDied

SLOW = "json.tool"  # any module that nothing else imports


@pytest.fixture(scope="module")
def server():
    with ForkServer([SLOW], {"MEMFIT_TEST": "yes"}) as server:
        yield server


def _leave_a_trace() -> tuple[bool, bool, str, int]:
    there = hasattr(sys, "memfit_trace")
    sys.memfit_trace = True
    return there, SLOW in sys.modules, os.environ["MEMFIT_TEST"], os.getpid()


def test_every_task_has_a_process_of_its_own_with_the_imports_done(server):
    first, second = (server.run(_leave_a_trace, ()) for _ in range(2))
    assert first[:3] == second[:3] == (False, True, "yes")
    assert first[3] != second[3]


def test_what_a_task_raises_is_raised_here_with_its_traceback(server):
    with pytest.raises(ZeroDivisionError) as raised:
        server.run(lambda: 1 / 0, ())
    assert "Traceback of the isolated process" in str(raised.value.__cause__)


def test_a_crash_is_reported_and_the_next_task_runs(server):
    with pytest.raises(ProcessDied, match="SIGABRT"):
        server.run(os.abort, ())
    assert server.run(abs, (-3,)) == 3


def test_a_task_that_takes_too_long_is_ended_with_what_it_started(server):
    def hang(file: str) -> None:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(file).write_text(f"{os.getpid()} {child.pid}")
        time.sleep(600)

    file = f"/tmp/memfit-test-{os.getpid()}"
    with pytest.raises(TimeoutError):
        server.run(hang, (file,), timeout=5.0)
    pids = [int(number) for number in Path(file).read_text().split()]
    Path(file).unlink()
    _wait_until(lambda: not any(_runs(pid) for pid in pids))


def test_tasks_of_two_threads_run_at_the_same_time(server):
    def meet(mine: str, other: str) -> bool:
        Path(mine).touch()
        for _ in range(6000):
            if Path(other).exists():
                return True
            time.sleep(0.01)
        return False

    names = [f"/tmp/memfit-test-{os.getpid()}-{which}" for which in "ab"]
    met: list[bool] = []
    threads = [
        threading.Thread(target=lambda pair=pair: met.append(server.run(meet, pair)))
        for pair in (tuple(names), tuple(reversed(names)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in names:
        Path(name).unlink()
    assert met == [True, True]


def test_a_server_that_was_ended_starts_again():
    with ForkServer([], {}) as server:
        parent = server.run(os.getppid, ())
        os.kill(parent, signal.SIGKILL)
        _wait_until(lambda: not _runs(parent))
        try:
            assert server.run(abs, (-3,)) == 3
        except ProcessDied:  # it had not been seen to end
            assert server.run(abs, (-3,)) == 3


def test_what_cannot_be_sent_is_refused(server):
    with pytest.raises(InvalidInput, match="picklable"):
        server.run(abs, (threading.Lock(),))


def test_a_module_that_cannot_be_imported_ends_the_server():
    with ForkServer(["memfit.no_such_module"], {}) as server, pytest.raises(ProcessDied):
        server.run(abs, (-3,))


def test_the_server_and_its_tasks_end_with_their_caller(tmp_path):
    script = textwrap.dedent(
        f"""
        import os, time
        from pathlib import Path
        from memfit.budgets.fork_server import ForkServer

        def hang():
            Path({str(tmp_path / "pids")!r}).write_text(f"{{os.getpid()}} {{os.getppid()}}")
            time.sleep(600)

        ForkServer([], {{}}).run(hang, ())
        """
    )
    caller = subprocess.Popen([sys.executable, "-c", script])
    _wait_until(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text())
    pids = [int(number) for number in (tmp_path / "pids").read_text().split()]
    caller.kill()
    caller.wait()
    _wait_until(lambda: not any(_runs(pid) for pid in pids))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _wait_until(condition) -> None:
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen within a minute")


def test_a_task_may_ask_its_caller_and_a_task_without_one_is_told(server):
    from memfit.budgets.child import ask

    def asks() -> list[bytes]:
        return [ask(b"a" * 200_000), ask(b"")]

    assert server.run(asks, (), respond=lambda question: question[:3] * 2) == [b"aaaaaa", b""]
    with pytest.raises(ConnectionError, match="runs no task"):
        ask(b"here")


def test_a_crash_is_seen_though_a_forked_process_holds_the_pipes(server):
    def forks_and_dies() -> None:
        if os.fork() == 0:
            time.sleep(600)
        os.abort()

    with pytest.raises(ProcessDied, match="SIGABRT"):
        server.run(forks_and_dies, ())


def test_a_closed_server_ends_its_tasks_and_takes_no_more():
    with ForkServer([], {}) as server:
        ended: list[BaseException] = []

        def wait() -> None:
            try:
                server.run(time.sleep, (600,))
            except ProcessDied as died:
                ended.append(died)

        thread = threading.Thread(target=wait)
        thread.start()
        server.run(abs, (1,))  # it runs now
    thread.join(60)
    assert len(ended) == 1
    with pytest.raises(ProcessDied):
        server.run(abs, (1,))
