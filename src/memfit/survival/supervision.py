"""What a process that `memfit run` started knows: where its checkpoints are, and how far an earlier one came."""

import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memfit.survival.checkpoint_files import Checkpoint, TornCheckpoint, read
from memfit.survival.checkpoints import CheckpointWriter, latest

_POSITION = struct.Struct("<qqq")


class Stopped(BaseException):
    """Ends the script after its last checkpoint; no `except Exception` of the script stops it."""


class Beacon:
    """A few bytes of a file that say which batch is being trained; they outlive the process, whatever ends it."""

    def __init__(self, path: Path) -> None:
        with path.open("wb") as file:
            file.write(_POSITION.pack(-1, 0, 0))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _POSITION.size)

    def show(self, call: int, epoch: int, batch: int) -> None:
        """Notes the position."""
        _POSITION.pack_into(self._map, 0, call, epoch, batch)


def seen(path: Path) -> tuple[int, int, int] | None:
    """Reads a beacon: number of the fit(), epoch and batch; None where no training had begun."""
    try:
        position = _POSITION.unpack(path.read_bytes()[: _POSITION.size])
    except (OSError, struct.error):
        return None
    return None if position[0] < 0 else position


@dataclass
class Supervision:
    """The supervised process.

    Attributes:
        directory: Where checkpoints, plans and the beacon are.
        seed: What orders that the script does not seed are drawn from.
        shortest: Seconds between two checkpoints at least.
        tighten: Whether memory ended the process before: then another plan is made, for less.
        originals: Keras's own methods, by name.
        calls: Calls of fit() begun so far.
        inside: Whether memfit is at work, so that what it calls of Keras is Keras's own.
        training: Whether a fit() is running.
        stopping: Whether the process was asked to end.
    """

    directory: Path
    seed: int
    shortest: float
    tighten: bool = False
    originals: dict[str, Callable[..., Any]] = field(default_factory=dict)
    calls: int = 0
    inside: bool = False
    training: bool = False
    stopping: bool = False

    def __post_init__(self) -> None:
        self._pid = os.getpid()
        self.writer = CheckpointWriter(self.directory, self.shortest)
        self.beacon = Beacon(self.directory / "position")
        self.reached = latest(self.directory)

    def is_here(self) -> bool:
        """Whether this is the supervised process, and not one that it forked."""
        return os.getpid() == self._pid

    def has_finished(self, call: int) -> bool:
        """Whether an earlier process has finished a call of fit()."""
        return (self.directory / finished_name(call)).exists()

    def finished(self, call: int) -> Checkpoint | None:
        """The state in which an earlier process left a call of fit(); None if it has to be trained."""
        path = self.directory / finished_name(call)
        try:
            return read(path) if path.exists() else None
        except TornCheckpoint:
            path.unlink(missing_ok=True)
            return None

    def unfinished(self, call: int) -> Checkpoint | None:
        """The last checkpoint, if it lies in this call of fit()."""
        found = self.reached
        return found if found is not None and found.facts["call"] == call else None


def finished_name(call: int) -> str:
    """The file of the state at the end of a call of fit()."""
    return f"fit-{call:03d}.npz"


_current: Supervision | None = None


def supervise_here(supervision: Supervision) -> None:
    """Lets the calls of fit() in this process be supervised."""
    global _current
    _current = supervision


def current() -> Supervision | None:
    """The supervision of this process; None where there is none, where memfit is at work, or after a fork."""
    supervision = of_this_process()
    return None if supervision is None or supervision.inside else supervision


def of_this_process() -> Supervision | None:
    """The supervision of this process, whatever it is doing; None where there is none, or in a forked process."""
    return _current if _current is not None and _current.is_here() else None


def ask_to_stop() -> bool:
    """Lets a fit() that is running end after the next batch, with a checkpoint; False where none is running."""
    supervision = of_this_process()
    if supervision is None or not supervision.training:
        return False
    supervision.stopping = True
    return True
