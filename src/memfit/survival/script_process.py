"""One process of a run, seen from its supervisor: its start, its streams, its end."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import tty
from collections.abc import Mapping, Sequence
from pathlib import Path

_TAIL = 2**16  # bytes of the error stream kept for the diagnosis
_SHOWN = 20  # lines of a silent rank's error stream, once they matter


class ScriptProcess:
    """A script in a process of its own.

    What rank 0 writes is passed on as it comes. All ranks write the same, so of the others only what memfit says is
    passed on, with the number of the rank; the end of the rest is kept.

    Args:
        script: The script.
        arguments: Its arguments.
        environment: Variables beside those of this process.
        rank: Its number.
    """

    def __init__(
        self, script: Path, arguments: Sequence[str], environment: Mapping[str, str], rank: int = 0
    ) -> None:
        self.rank = rank
        self._log = bytearray()
        reading, writing = _stream(rank)
        self._child = subprocess.Popen(
            [sys.executable, "-m", "memfit.survival.child_process", str(script), *arguments],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL if rank else None,
            stdout=subprocess.DEVNULL if rank else None,
            stderr=writing,
            process_group=0,  # a Ctrl-C is for the supervisor, which passes it on to the script alone
        )
        self.pid = self._child.pid
        os.close(writing)
        copy = self._pass_on_what_memfit_says if rank else self._pass_on
        self._copier = threading.Thread(target=copy, args=(reading,), daemon=True)
        self._copier.start()

    @property
    def log(self) -> str:
        """The end of its error stream."""
        return self._log.decode(errors="replace")

    def poll(self) -> int | None:
        """Returns its exit code; None while it runs. What a process that failed has started is ended with it."""
        code = self._child.poll()
        if code is not None and code != 0:
            self._end_group()  # its data workers would hold memory
        return code

    def send_signal(self, number: int) -> None:
        """Passes a signal on to the script alone."""
        self._child.send_signal(number)

    def kill(self) -> None:
        """Ends it and what it has started, at once."""
        self._end_group()
        self._child.wait()

    def end_copying(self) -> None:
        """Waits for the rest of its error stream, which a process that the script left behind may hold open."""
        self._copier.join(1.0)

    def show_log(self) -> None:
        """Shows the last lines of a rank whose error stream was not passed on."""
        for line in self.log.splitlines()[-_SHOWN:] if self.rank else ():
            _write(f"[rank {self.rank}] {line}\n".encode())

    def _end_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def _pass_on(self, reading: int) -> None:
        with contextlib.suppress(OSError):  # a terminal's other end reports its end as an error
            while chunk := os.read(reading, 2**16):
                _write(chunk)
                self._keep(chunk)
        os.close(reading)

    def _pass_on_what_memfit_says(self, reading: int) -> None:
        with open(reading, "rb") as stream:
            for line in stream:
                self._keep(line)
                if line.startswith(b"memfit: "):
                    _write(b"memfit: [rank %d] " % self.rank + line.removeprefix(b"memfit: "))

    def _keep(self, chunk: bytes) -> None:
        self._log += chunk
        del self._log[:-_TAIL]


def _write(chunk: bytes) -> None:
    sys.stderr.buffer.write(chunk)
    sys.stderr.buffer.flush()


def _stream(rank: int) -> tuple[int, int]:
    """Both ends of the error stream; a terminal's if ours is one, so that the script sees one as well."""
    if rank or not sys.stderr.isatty():
        return os.pipe()
    reading, writing = os.openpty()
    tty.setraw(writing)
    return reading, writing
