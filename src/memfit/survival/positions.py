"""A position in a training: call of fit(), epoch and batch, in a file that outlives the process, and in words."""

import contextlib
import mmap
import struct
from pathlib import Path
from typing import TypeAlias

POSITION = "position"  # the file of a run that says which batch is being trained
Position: TypeAlias = tuple[int, int, int]
_POSITION = struct.Struct("<qqq")


class PositionFile:
    """A few bytes of a file that say which batch is being trained; they outlive the process, whatever ends it."""

    def __init__(self, path: Path) -> None:
        with path.open("wb") as file:
            file.write(_POSITION.pack(-1, 0, 0))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _POSITION.size)

    def write(self, call: int, epoch: int, batch: int) -> None:
        """Notes the position."""
        _POSITION.pack_into(self._map, 0, call, epoch, batch)


def read_position(directory: Path) -> Position | None:
    """Returns the number of the fit(), the epoch and the batch in training; None where none had begun.

    Of several ranks the one that is furthest counts: they are at most one batch apart.
    """
    positions = []
    for path in directory.glob(f"{POSITION}*"):
        with contextlib.suppress(OSError, struct.error):
            positions.append(_POSITION.unpack(path.read_bytes()[: _POSITION.size]))
    return max((position for position in positions if position[0] >= 0), default=None)


def say_where(position: Position | None) -> str:
    """Says where a process was when it died."""
    if position is None:
        return "before the training began"
    call, epoch, batch = position
    place = f"epoch {epoch + 1}, batch {batch + 1}"
    return f"in fit() {call + 1}, {place}" if call else f"in {place}"


def say_from(position: Position | None) -> str:
    """Says where a new process goes on."""
    if position is None:
        return "from the beginning, as there was no checkpoint yet"
    call, epoch, batch = position
    place = f"after batch {batch} of epoch {epoch + 1}" if batch else f"at the beginning of epoch {epoch + 1}"
    return f"{place} of fit() {call + 1}" if call else place
