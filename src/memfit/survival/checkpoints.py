"""Writing checkpoints beside a training: in a thread, as often as they cost little, the last two kept."""

import logging
import threading
import time
from pathlib import Path

from memfit.survival.checkpoint_files import Checkpoint, TornCheckpoint, read, read_facts, write
from memfit.survival.positions import Position

_LOG = logging.getLogger("memfit")
_KEPT = 2  # the last one may be torn by what ended the process; then the one before counts
_SHARE = 0.05  # of the time, at most
_PATTERN = "checkpoint-*.npz"


class CheckpointWriter:
    """Writes the checkpoints of one process to a directory.

    A checkpoint costs the training the copying of its values (`cost`, told by whoever copies) and the processor's
    time of the writing thread. The next one is due when both together are less than 5% of the time since.
    """

    def __init__(self, directory: Path, shortest: float) -> None:
        """Goes on numbering where earlier processes stopped.

        Args:
            directory: Where the files are.
            shortest: Seconds between two checkpoints at least, however cheap they are.
        """
        self._directory = directory
        self._shortest = shortest
        self._number = _next_number(directory)
        self._due = time.monotonic() + shortest
        self._thread: threading.Thread | None = None
        self._failed = False
        self.cost = 0.0

    def is_due(self) -> bool:
        """Whether it is time for the next one."""
        busy = self._thread is not None and self._thread.is_alive()
        return not busy and time.monotonic() >= self._due

    def save(self, checkpoint: Checkpoint, copied_in: float) -> None:
        """Begins to write a checkpoint whose values took `copied_in` seconds to copy."""
        self.wait()
        path = self._directory / _name(self._number)
        self._number += 1
        self._thread = threading.Thread(target=self._write, args=(checkpoint, path, copied_in), daemon=True)
        self._thread.start()

    def save_now(self, checkpoint: Checkpoint, name: str | None = None) -> bool:
        """Writes a checkpoint and waits for it; says whether it is there."""
        self.wait()
        path = self._directory / (name or _name(self._number))
        self._number += name is None
        self._write(checkpoint, path, 0.0)
        return path.exists()

    def forget(self) -> None:
        """Removes all checkpoints: what comes after them has been saved."""
        for path in self._directory.glob(_PATTERN):
            path.unlink(missing_ok=True)

    def wait(self) -> None:
        """Waits until nothing is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, checkpoint: Checkpoint, path: Path, copied_in: float) -> None:
        begun = time.thread_time()
        try:
            write(checkpoint, path)
        except OSError as error:
            if not self._failed:
                _LOG.warning(
                    "A checkpoint could not be written (%s). Training continues; until one can be written, "
                    "a restart uses the previous one. Free some space in %s.",
                    error.strerror or error,
                    self._directory,
                )
            self._failed = True
        else:
            self._failed = False
            for old in sorted(self._directory.glob(_PATTERN))[:-_KEPT]:
                old.unlink(missing_ok=True)
        self.cost = copied_in + time.thread_time() - begun
        self._due = time.monotonic() + max(self._shortest, self.cost / _SHARE)


def read_latest(directory: Path) -> Checkpoint | None:
    """Returns the last checkpoint that is whole; None where there is none."""
    for path in sorted(directory.glob(_PATTERN), reverse=True):
        try:
            return read(path)
        except TornCheckpoint as error:
            _LOG.warning("%s The previous checkpoint is used.", str(error).rstrip(".") + ".")
            path.unlink(missing_ok=True)  # its number would make it the one to keep
    return None


def find_position(directory: Path) -> Position | None:
    """Returns the call, the epoch and the batch after which a new process goes on; None for the beginning."""
    for path in sorted(directory.glob(_PATTERN), reverse=True):
        facts = read_facts(path)
        if facts is not None:
            return facts["call"], facts["epoch"], facts["batch"]
    finished = len(list(directory.glob("fit-*.npz")))
    return (finished, 0, 0) if finished else None


def next_path(directory: Path) -> Path:
    """Returns the file of a checkpoint that comes after all that are there."""
    return directory / _name(_next_number(directory))


def _next_number(directory: Path) -> int:
    return 1 + max((int(path.stem.rpartition("-")[2]) for path in directory.glob(_PATTERN)), default=0)


def _name(number: int) -> str:
    return f"checkpoint-{number:06d}.npz"
