"""The supervisor: runs a script in a process of its own, and starts it again where it was when it dies."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import tty
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from memfit.errors import InvalidInput
from memfit.planning.fidelity import Fidelity
from memfit.sizes import Size
from memfit.survival.checkpoints import find_position
from memfit.survival.child_process import OUTCOME, SETTINGS
from memfit.survival.crashes import Crash, count_kernel_kills, explain_crash, judge_exit
from memfit.survival.run_directory import Lock, RunIdentity, directory_of, has_checkpoint, open_directory
from memfit.survival.run_records import RunRecords
from memfit.survival.settings import POSITION, ProcessSettings, RunSettings
from memfit.survival.supervision import read_position
from memfit.training.records.files import records_folder
from memfit.training.records.record import RunRecord

# A death further on is progress; this many without any, and the cause is where it stands.
_ATTEMPTS = 3
_TAIL = 2**16  # bytes of the error stream kept for the diagnosis
_REQUESTS = (signal.SIGINT, signal.SIGTERM)


def supervise(
    script: str | Path,
    arguments: Sequence[str] = (),
    settings: RunSettings = RunSettings(),  # noqa: B008 (frozen)
    *,
    resume: bool = False,
    tell: Callable[[str], None] = lambda line: None,
    report: Callable[[Sequence[tuple[Path, RunRecord]]], None] = lambda records: None,
) -> int:
    """Runs a training script to its end, however often its process dies.

    Args:
        script: The script, which need not know memfit.
        arguments: Its arguments.
        settings: What to do with it.
        resume: Whether to go on where an earlier run was stopped.
        tell: Takes what there is to say, a line at a time.
        report: Takes the records of what was trained, with their files, at the end.

    Returns:
        The script's exit code; 128 and the signal's number where a signal ended it.

    Raises:
        InvalidInput: If there is no such script, or its checkpoint belongs to another one.
    """
    script = Path(script)
    if not script.is_file():
        raise InvalidInput("There is no such script", received=str(script))
    if settings.memory is not None:
        Size(settings.memory, of=2**60)
    Fidelity.read(settings.allow)
    directory = directory_of(script, arguments, Path.cwd())
    lock = Lock(directory)
    try:
        if resume and not has_checkpoint(directory):
            tell("There is no checkpoint of this script with these arguments: it starts from the beginning.")
        identity = open_directory(directory, script, arguments, resume=resume, seed=settings.seed)
        run = _Run(script, list(arguments), directory, identity, tell, report)
        return run.run_to_end(settings)
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
        identity: RunIdentity,
        tell: Callable[[str], None],
        report: Callable[[Sequence[tuple[Path, RunRecord]]], None],
    ) -> None:
        self._script, self._arguments, self._directory = script, arguments, directory
        self._identity, self._tell, self._report = identity, tell, report
        # Without a folder to keep them, records are there for the report at the end, and go with the directory.
        self._record_folder = (records_folder() or directory / "records").resolve()
        self._run = f"{identity.begun} {directory.resolve()}"
        self._records = RunRecords(self._record_folder, self._run)
        self._restarts = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._asked: int | None = None
        self._log = bytearray()

    def run_to_end(self, settings: RunSettings) -> int:
        """Runs the script to its end, and reports."""
        code = self._run_to_end(settings)
        self._report(self._records.read())
        if code == 0:
            shutil.rmtree(self._directory, ignore_errors=True)
        return code

    def _run_to_end(self, settings: RunSettings) -> int:
        """Starts the script until it ends by itself, is asked to end, or dies without getting further."""
        furthest: tuple[int, int, int] | None = None
        attempts, tighten = 0, False
        with self._signals():
            while True:
                kills = count_kernel_kills()
                code = self._run_once(settings, tighten=tighten)
                if code == 0:
                    return 0
                if self._asked is not None:
                    return self._stop(128 + self._asked)
                log = self._log.decode(errors="replace")
                said = (self._directory / OUTCOME).exists()
                killed = count_kernel_kills() > kills
                crash = judge_exit(code, log, said_memory=said, killed_for_memory=killed)
                if crash is None:
                    ended = 128 - code if code < 0 else code
                    return self._stop(ended) if ended - 128 in _REQUESTS else ended
                position = read_position(self._directory)
                further = position is not None and (furthest is None or position > furthest)
                attempts = 1 if further else attempts + 1
                furthest = max(filter(None, (position, furthest)), default=None)
                if attempts >= _ATTEMPTS or (crash.memory and self._records.has_custom_loop()):
                    return self._give_up(crash, position, log)
                tighten = crash.memory
                self._start_again(crash, position)

    def _run_once(self, settings: RunSettings, *, tighten: bool) -> int:
        """Runs the script in a process, and returns its exit code."""
        for name in (OUTCOME, POSITION):
            (self._directory / name).unlink(missing_ok=True)
        self._log.clear()
        told = ProcessSettings(
            **{**asdict(settings), "seed": self._identity.seed},
            directory=str(self._directory.resolve()),
            records=str(self._record_folder),
            run=self._run,
            script=self._script.name,
            tighten=tighten,
            verbose=sys.stderr.isatty(),
        )
        # One order of sets and dicts of text in all processes of the run.
        hashes = os.environ.get("PYTHONHASHSEED", str(self._identity.seed))
        environment = {**os.environ, SETTINGS: told.to_json(), "PYTHONHASHSEED": hashes}
        reading, writing = _stream()
        self._child = subprocess.Popen(
            [sys.executable, "-m", "memfit.survival.child_process", str(self._script), *self._arguments],
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

    def _stop(self, code: int) -> int:
        if has_checkpoint(self._directory):
            self._tell(f"To go on: {self._command()}")
        else:
            self._tell("There is no checkpoint yet.")
        return code

    def _command(self) -> str:
        return " ".join(["memfit run --resume", str(self._script), *self._arguments])

    def _start_again(self, crash: Crash, position: tuple[int, int, int] | None) -> None:
        """Says what ended the process, and where the next one goes on."""
        self._restarts += 1
        plan = " with a plan for less memory" if crash.memory else ""
        goes_on = f"{plan}: goes on {_from(find_position(self._directory))}"
        self._tell_death(crash, f"{crash.cause} {_where(position)}", position, f"Started again{goes_on}.")
        self._tell(f"restart {self._restarts}{goes_on}")

    def _tell_death(
        self, crash: Crash, death: str, position: tuple[int, int, int] | None, goes_on: str | None
    ) -> None:
        hint = f" ({crash.hint})" if crash.hint else ""
        self._tell(death)
        self._tell(f"likely cause: {crash.likely}{hint}")
        self._records.note_death(f"{death}. Likely cause: {crash.likely}.", position, goes_on)

    def _give_up(self, crash: Crash, position: tuple[int, int, int] | None, log: str) -> int:
        loop = crash.memory and self._records.has_custom_loop()
        how_often = (
            "in a loop that memfit cannot change" if loop else f"{_ATTEMPTS} times without getting further"
        )
        where = "" if loop else f"{_where(position)}, "
        self._tell_death(crash, f"{crash.cause} {where}{how_often}", position, None)
        for line in repr(explain_crash(crash, log)).splitlines():
            self._tell(line)
        if has_checkpoint(self._directory):
            self._tell(f"When that is changed: {self._command()}")
        return crash.exit_code


def _stream() -> tuple[int, int]:
    """Both ends of the error stream; a terminal's if ours is one, so that the script sees one as well."""
    if not sys.stderr.isatty():
        return os.pipe()
    reading, writing = os.openpty()
    tty.setraw(writing)
    return reading, writing


def _where(position: tuple[int, int, int] | None) -> str:
    if position is None:
        return "before the training began"
    call, epoch, batch = position
    place = f"epoch {epoch + 1}, batch {batch + 1}"
    return f"in fit() {call + 1}, {place}" if call else f"in {place}"


def _from(position: tuple[int, int, int] | None) -> str:
    """Says where a new process goes on."""
    if position is None:
        return "from the beginning, as there was no checkpoint yet"
    call, epoch, batch = position
    place = f"after batch {batch} of epoch {epoch + 1}" if batch else f"at the beginning of epoch {epoch + 1}"
    return f"{place} of fit() {call + 1}" if call else place
