"""The other side of `ForkServer`: imports some modules, and forks a process for each task it is sent."""

import gc
import importlib
import os
import signal
import socket
import sys
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector

from memfit.budgets.child import run_task


class _Server:
    """Starts processes and tells how they ended, until the caller is gone."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._woken, self._wake = socket.socketpair()
        self._status: dict[int, int] = {}  # where to tell the end of each running process

    def serve(self) -> None:
        """Serves until the caller closes the socket or ends, and ends what is left then."""
        for end in (self._woken, self._wake):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._end())
        with DefaultSelector() as selector:
            selector.register(self._control, EVENT_READ)
            selector.register(self._woken, EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select()]
                if self._woken in ready:
                    with suppress(BlockingIOError):
                        self._woken.recv(4096)
                    self._collect()
                if self._control in ready:
                    _, descriptors, _, _ = socket.recv_fds(self._control, 1, 4)
                    if not descriptors:
                        self._end()
                    self._fork(*descriptors)

    def _fork(self, task_read: int, result_write: int, status_write: int, questions: int) -> None:
        pid = os.fork()
        if pid == 0:
            self._become_task()
            os.close(status_write)
            try:
                run_task(task_read, result_write, questions)
            finally:
                # Not through Python's end: it would take a graph of ten thousands of ops apart object by object.
                os._exit(0)
        os.close(task_read)
        os.close(result_write)
        os.close(questions)
        self._status[pid] = status_write
        os.write(status_write, f"{pid}\n".encode())

    def _become_task(self) -> None:
        os.setsid()  # a process group of its own, so that a timeout can end all of it
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for end in (self._control, self._woken, self._wake):
            end.close()
        for descriptor in self._status.values():
            os.close(descriptor)

    def _collect(self) -> None:
        """Tells the ends of processes."""
        for pid in list(self._status):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                descriptor = self._status.pop(pid)
                with suppress(BrokenPipeError):
                    os.write(descriptor, f"{os.waitstatus_to_exitcode(status)}\n".encode())
                os.close(descriptor)

    def _end(self) -> None:
        for pid in self._status:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        os._exit(0)


if __name__ == "__main__":  # with the number of a socket, and the names of the modules
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.freeze()  # what is there now is shared with every task's process, as long as nothing touches it
    _Server(control).serve()
