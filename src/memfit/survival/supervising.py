"""The supervisor: runs a script in a process of its own, and starts it again where it was when it dies."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import tty
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from memfit.errors import InvalidInput
from memfit.planning.fidelity import Fidelity
from memfit.sizes import Size
from memfit.survival.deaths import Death, death, explained, kernel_kills
from memfit.survival.run_records import Lock, RunRecord, directory_of, has_checkpoint, opened
from memfit.survival.script_running import OUTCOME, SETTINGS

# A death further on is progress; this many without any, and the cause is where it stands.
_ATTEMPTS = 3
_TAIL = 2**16  # bytes of the error stream kept for the diagnosis
_REQUESTS = (signal.SIGINT, signal.SIGTERM)
_SHORTEST = 5.0  # seconds between two checkpoints: what a kill may cost, however cheap checkpoints are


def supervise(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    memory: int | str | None = None,
    allow: str = "near",
    resume: bool = False,
    tell: Callable[[str], None] = lambda line: None,
    shortest: float = _SHORTEST,
) -> int:
    """Runs a training script to its end, however often its process dies.

    Args:
        script: The script, which need not know memfit.
        arguments: Its arguments.
        memory: What each `fit` in it may take; None for what is free.
        allow: The most that a plan may change.
        resume: Whether to go on where an earlier run was stopped.
        tell: Takes what there is to say, a line at a time.
        shortest: Seconds between two checkpoints at least.

    Returns:
        The script's exit code; 128 and the signal's number where a signal ended it.

    Raises:
        InvalidInput: If there is no such script, or its checkpoint belongs to another one.
    """
    script = Path(script)
    if not script.is_file():
        raise InvalidInput("There is no such script", received=str(script))
    if memory is not None:
        Size(memory, of=2**60)
    Fidelity.read(allow)
    directory = directory_of(script, arguments, Path.cwd())
    lock = Lock(directory)
    try:
        if resume and not has_checkpoint(directory):
            tell("There is no checkpoint of this script with these arguments: it starts from the beginning.")
        record = opened(directory, script, arguments, resume=resume)
        run = _Run(script, list(arguments), directory, record, tell)
        settings = {"memory": memory, "allow": allow, "shortest": shortest}
        return run.to_its_end(settings)
    finally:
        lock.release()
        with contextlib.suppress(OSError):  # not empty: other runs have theirs there
            directory.parent.rmdir()


class _Run:
    """One script, its processes one after the other, and what was seen of them."""

    def __init__(
        self,
        script: Path,
        arguments: list[str],
        directory: Path,
        record: RunRecord,
        tell: Callable[[str], None],
    ) -> None:
        self._script, self._arguments, self._directory = script, arguments, directory
        self._record, self._tell = record, tell
        self._child: subprocess.Popen[bytes] | None = None
        self._asked: int | None = None
        self._log = bytearray()

    def to_its_end(self, settings: dict[str, Any]) -> int:
        """Starts the script until it ends by itself, is asked to end, or dies without getting further."""
        furthest: tuple[int, int, int] | None = None
        attempts, tighten = 0, False
        with self._signals():
            while True:
                kills = kernel_kills()
                code = self._once({**settings, "tighten": tighten})
                if code == 0:
                    shutil.rmtree(self._directory, ignore_errors=True)
                    return 0
                if self._asked is not None:
                    return self._stopped(128 + self._asked)
                log = self._log.decode(errors="replace")
                said = (self._directory / OUTCOME).exists()
                found = death(code, log, said_memory=said, killed_for_memory=kernel_kills() > kills)
                if found is None:
                    ended = 128 - code if code < 0 else code
                    return self._stopped(ended) if ended - 128 in _REQUESTS else ended
                position = _seen(self._directory / "position")
                further = position is not None and (furthest is None or position > furthest)
                attempts = 1 if further else attempts + 1
                furthest = max(filter(None, (position, furthest)), default=None)
                if attempts >= _ATTEMPTS:
                    return self._given_up(found, position, log)
                tighten = found.memory
                self._tell(f"{found.cause} {_where(position)}. " + _next(found))

    def _once(self, settings: dict[str, Any]) -> int:
        """Runs the script in a process, and returns its exit code."""
        (self._directory / OUTCOME).unlink(missing_ok=True)
        self._log.clear()
        told = {
            **settings,
            "directory": str(self._directory.resolve()),
            "seed": self._record.seed,
            "talkative": sys.stderr.isatty(),
        }
        # One order of sets and dicts of text in all processes of the run.
        hashes = os.environ.get("PYTHONHASHSEED", str(self._record.seed))
        environment = {**os.environ, SETTINGS: json.dumps(told), "PYTHONHASHSEED": hashes}
        reading, writing = _stream()
        self._child = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "memfit.survival.script_running",
                str(self._script),
                *self._arguments,
            ],
            env=environment,
            stderr=writing,
            process_group=0,  # a Ctrl-C is for the supervisor, which passes it on to the script alone
        )
        os.close(writing)
        copier = threading.Thread(target=self._copy, args=(reading,), daemon=True)
        copier.start()
        code = self._child.wait()
        if code != 0:
            with contextlib.suppress(ProcessLookupError):  # its data workers would hold memory
                os.killpg(self._child.pid, signal.SIGKILL)
        copier.join(1.0)  # a process that the script left behind may hold the stream open
        return code

    def _copy(self, reading: int) -> None:
        """Passes the error stream on as it comes, and keeps its end."""
        with contextlib.suppress(OSError):  # a terminal's other end reports its end as an error
            while chunk := os.read(reading, 2**16):
                sys.stderr.buffer.write(chunk)
                sys.stderr.buffer.flush()
                self._log += chunk
                del self._log[:-_TAIL]
        os.close(reading)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def pass_on(number: int, frame: Any) -> None:
            child, first = self._child, self._asked is None
            self._asked = number
            if child is None or child.poll() is not None:
                return
            if first:
                self._tell("Ending after the current batch, with a checkpoint. Once more ends it at once.")
                child.send_signal(number)
            else:
                os.killpg(child.pid, signal.SIGKILL)

        before = {number: signal.signal(number, pass_on) for number in _REQUESTS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stopped(self, code: int) -> int:
        if has_checkpoint(self._directory):
            self._tell(f"To go on: {self._command()}")
        else:
            self._tell("There is no checkpoint yet.")
        return code

    def _command(self) -> str:
        return " ".join(["memfit run --resume", str(self._script), *self._arguments])

    def _given_up(self, found: Death, position: tuple[int, int, int] | None, log: str) -> int:
        self._tell(f"{found.cause} {_where(position)}, {_ATTEMPTS} times without getting further.")
        for line in repr(explained(found, log)).splitlines():
            self._tell(line)
        if has_checkpoint(self._directory):
            self._tell(f"When that is changed: {self._command()}")
        return found.exit_code


def _stream() -> tuple[int, int]:
    """Both ends of the error stream; a terminal's if ours is one, so that the script sees one as well."""
    if not sys.stderr.isatty():
        return os.pipe()
    reading, writing = os.openpty()
    tty.setraw(writing)
    return reading, writing


def _seen(path: Path) -> tuple[int, int, int] | None:
    from memfit.survival.supervision import seen

    return seen(path)


def _where(position: tuple[int, int, int] | None) -> str:
    if position is None:
        return "before the training began"
    call, epoch, batch = position
    return (
        f"in fit() {call + 1}, epoch {epoch + 1}, batch {batch + 1}"
        if call
        else (f"in epoch {epoch + 1}, batch {batch + 1}")
    )


def _next(found: Death) -> str:
    return "Starting again with a tighter plan." if found.memory else "Starting again."
