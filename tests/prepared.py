"""Processes that begin with TensorFlow imported: an arena for a test costs a fork instead of an import.

One process for each worker imports TensorFlow and runs no op of it. Every `ForkServer` of a test, memfit's own
recorders included, is a fork of it in the environment that was asked for: TensorFlow reads the arena's cap and its
numbers of threads with its first op. oneDNN's switch is read by the import and has to be the arena's already, so
processes without it start as they do outside of tests. `tests/budgets` has the tests of real starts.
"""

import atexit
import gc
import importlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import Any, TypeVar

import psutil

import memfit
from memfit.budgets.arena import arena_environment
from memfit.budgets.fork_server import ForkServer

Result = TypeVar("Result")
_ADDRESS = "MEMFIT_TESTS_PREPARED"
_MODULES = ("tensorflow", "keras", "memfit.estimation.recording.record", "memfit.training.fitting")
_READ_AT_IMPORT = {"TF_ENABLE_ONEDNN_OPTS": "0", "TF_CPP_MIN_LOG_LEVEL": "3"}
_start_for_real = ForkServer._start
_starting = threading.Lock()


def in_arena(function: Callable[..., Result], *args: Any, memory: int | str) -> Result:
    """Runs `function(*args)` in an arena of this size, as `memfit.isolated` does, in a fork that has TensorFlow."""
    return run_forked(function, *args, **arena_environment(memory))


def run_forked(function: Callable[..., Result], *args: Any, **environment: str) -> Result:
    """Runs `function(*args)` with environment variables beside the caller's, in a fork that has TensorFlow."""
    with ForkServer(_MODULES, environment) as server:
        return server.run(function, args)


def run_memfit(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Runs `memfit ...` in a fork that has TensorFlow, without oneDNN; what it wrote is in the answer."""
    code, out, err = run_forked(_run_command, arguments, **{"TF_ENABLE_ONEDNN_OPTS": "0", **environment})
    return subprocess.CompletedProcess(["memfit", *arguments], code, out, err)


def _run_command(arguments: tuple[str, ...]) -> tuple[int, str, str]:
    from memfit.cli.main import main

    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        sys.argv = ["memfit", *arguments]
        try:
            code = main(list(arguments))
        except SystemExit as ending:
            code = int(ending.code or 0)
        sys.stdout.flush()
        sys.stderr.flush()
        out.seek(0)
        err.seek(0)
        return code, out.read(), err.read()


def forking_environment() -> dict[str, str]:
    """Returns what lets a Python process that a test starts for real have its recorders from here, as forks."""
    here = Path(__file__).parent
    inherited = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    path = [here / "forking_site", here, Path(memfit.__file__).parents[1], *inherited]
    return {_ADDRESS: _address(), "PYTHONPATH": os.pathsep.join(map(str, path))}


def install() -> None:
    """Lets every `ForkServer` that has the arena's switches begin as a fork."""
    ForkServer._start = _start  # type: ignore[method-assign]


def _start(server: ForkServer) -> None:
    if {**os.environ, **server._environment}.get("TF_ENABLE_ONEDNN_OPTS") != "0":
        _start_for_real(server)
        return
    address = _address()  # before the environment is copied: forks fork, too
    environment = {**os.environ, **server._environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    request = pickle.dumps((environment, str(Path.cwd()), list(sys.path), server._modules))
    server._control, theirs = socket.socketpair()
    with theirs, socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [len(request).to_bytes(8, "big")], [theirs.fileno(), 1, 2])
        connection.sendall(request)
        server._process = _Fork(int(connection.makefile().readline()))  # type: ignore[assignment]


class _Fork:
    """As much of `Popen` as a `ForkServer` uses, for a process that another one has started."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._process = psutil.Process(pid)

    def poll(self) -> int | None:
        return None if self._process.is_running() else -signal.SIGKILL

    def wait(self) -> int:
        self._process.wait()
        return -signal.SIGKILL


def _address() -> str:
    """Returns where the prepared process listens; the first question starts it."""
    with _starting:
        if _ADDRESS not in os.environ:
            os.environ[_ADDRESS] = _prepare()
        return os.environ[_ADDRESS]


def _prepare() -> str:
    folder = tempfile.TemporaryDirectory(prefix="memfit-tests-")
    listener = socket.socket(socket.AF_UNIX)
    address = str(Path(folder.name, "socket"))
    listener.bind(address)
    listener.listen(64)
    process = subprocess.Popen(
        [sys.executable, "-c", f"import prepared; prepared.serve({listener.fileno()})"],
        env={**os.environ, **_READ_AT_IMPORT, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        pass_fds=(listener.fileno(),),
        stdin=subprocess.PIPE,  # its end is the end of the process
        start_new_session=True,
    )
    listener.close()

    @atexit.register
    def end() -> None:
        process.communicate()
        folder.cleanup()

    return address


def serve(number: int) -> None:
    """Forks for every connection to a listening socket, until the process that started this one is gone."""
    listener = socket.socket(fileno=number)
    for name in _MODULES:
        importlib.import_module(name)
    install()
    gc.freeze()
    signal.signal(signal.SIGCHLD, _reap)
    with DefaultSelector() as selector:
        selector.register(listener, EVENT_READ)
        selector.register(0, EVENT_READ)
        while listener in [key.fileobj for key, _ in selector.select()]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                selector.close()
                _become_fork_server(connection)
            connection.close()


def _reap(*_: object) -> None:
    """Waits for what has ended; if it were ignored, its processor time would count nowhere."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _become_fork_server(connection: socket.socket) -> None:
    try:
        length, descriptors, _, _ = socket.recv_fds(connection, 8, 3)
        control, out, err = descriptors
        with connection.makefile("rb") as stream:
            environment, folder, path, modules = pickle.loads(stream.read(int.from_bytes(length, "big")))
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        sys.path[:] = path
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.close(out)
        os.close(err)
        for name in modules:
            importlib.import_module(name)
        connection.sendall(f"{os.getpid()}\n".encode())
        connection.close()
        from memfit.budgets.forking import _Server

        _Server(socket.socket(fileno=control)).serve()
    except BaseException:  # this is a copy of a process that serves others: nothing may leave
        traceback.print_exc()
    finally:
        os._exit(1)
