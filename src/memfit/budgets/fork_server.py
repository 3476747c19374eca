"""Running functions in processes that begin with their imports done."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from memfit.budgets.isolation import Result, converse, dump_task, read_answer
from memfit.errors import ProcessDied


class ForkServer:
    """A process that imports some modules once, and forks for every task.

    Each task runs in a process of its own, which is as a fresh one would be but for the time that the imports take:
    nothing that one task did is there for the next, and a crash ends no other. The server starts when this object
    is made, so that it imports while the caller does something else, and ends with its caller, however that ends.

    Importing the modules must start no threads that tasks need. TensorFlow starts its own with its first op.

    Args:
        modules: Names of the modules to import.
        environment: Environment variables beside the caller's.
    """

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self._modules, self._environment = tuple(modules), dict(environment)
        self._starting = threading.Lock()
        self._closed = False
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(
        self,
        function: Callable[..., Result],
        args: tuple[Any, ...],
        *,
        timeout: float | None = None,
        respond: Callable[[bytes], bytes] | None = None,
    ) -> Result:
        """Runs `function(*args)` in a process of its own and returns its result; threads may call this.

        The time counts from the start of that process. What it takes and raises is as in `memfit.isolated`.

        Args:
            function: What to run.
            args: Its arguments.
            timeout: Seconds after which the process and everything it started is ended.
            respond: Answers what the function asks through `child.ask`, in this thread.
        """
        return read_answer(*self.run_task(dump_task(function, args), timeout=timeout, respond=respond))

    def run_task(
        self,
        task: bytes,
        *,
        timeout: float | None = None,
        respond: Callable[[bytes], bytes] | None = None,
    ) -> tuple[bytes, int]:
        """Runs a task that was dumped before; returns its answer as it came, and the exit code."""
        with self._starting:
            if self._closed:
                raise ProcessDied(-signal.SIGTERM)
            if self._process.poll() is not None:
                self._control.close()
                self._start()
        task_read, task_write = os.pipe()
        result_read, result_write = os.pipe()
        status_read, status_write = os.pipe()
        questions, theirs = socket.socketpair()
        try:
            with suppress(OSError):  # the server has ended or is closed: then no number comes, either
                descriptors = [task_read, result_write, status_write, theirs.fileno()]
                socket.send_fds(self._control, [b"\0"], descriptors)
        finally:
            theirs.close()
            for descriptor in (task_read, result_write, status_write):
                os.close(descriptor)
        with os.fdopen(status_read, "rb") as status, questions:
            number = status.readline()  # waits for the imports
            if not number:
                os.close(task_write)
                os.close(result_read)
                raise ProcessDied(self._process.wait())
            try:
                answer = converse(task, task_write, result_read, timeout, status.fileno(), questions, respond)
            finally:
                os.close(result_read)
                with suppress(ProcessLookupError):
                    os.killpg(int(number), signal.SIGKILL)
                code = status.readline()
        return answer, int(code or -signal.SIGKILL)

    def close(self) -> None:
        """Ends the server and whatever runs in it; a task that another thread waits for has died then."""
        with self._starting:
            self._closed = True
        self._control.close()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait()

    def _start(self) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "memfit.budgets.forking", str(theirs.fileno()), *self._modules],
                env={
                    **os.environ,
                    **self._environment,
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                },
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
