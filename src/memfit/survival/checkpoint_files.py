"""The file of a checkpoint: a NumPy `.npz` with the arrays, the facts as JSON, and what only Python can hold.

Written whole or not at all: to a temporary file that is flushed to disk and then renamed. Every part carries a CRC
(a `.npz` is a zip file), which reading it checks, so that a torn or altered file is noticed. Callback states and
random states are pickled: read checkpoints only from a directory that is your own.
"""

import contextlib
import json
import os
import pickle
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from memfit.errors import MemfitError

_FACTS, _OBJECTS = "facts", "objects"


class TornCheckpoint(MemfitError, OSError):
    """A checkpoint file that is not what was written."""


@dataclass(frozen=True)
class Checkpoint:
    """One moment of a training.

    Attributes:
        facts: Where it was (call, epoch, batch) and of what, as plain data.
        arrays: The values of all variables, in their order.
        objects: States that only Python knows: callbacks, random numbers, logs; pickled.
    """

    facts: dict[str, Any]
    arrays: Sequence[Any] = ()
    objects: bytes = b""

    def unpickled(self) -> dict[str, Any]:
        """The states that only Python knows."""
        states: dict[str, Any] = pickle.loads(self.objects) if self.objects else {}
        return states

    @property
    def size(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays)


def write(checkpoint: Checkpoint, path: Path) -> None:
    """Writes a checkpoint to `path`, whole or not at all.

    Raises:
        OSError: If it cannot be written; `path` is then as it was, and nothing else is left.
    """
    unfinished = path.with_suffix(".unfinished")
    arrays = {f"{number:05d}": _plain(array) for number, array in enumerate(checkpoint.arrays)}
    arrays[_FACTS] = np.frombuffer(json.dumps(checkpoint.facts).encode(), dtype="uint8")
    arrays[_OBJECTS] = np.frombuffer(checkpoint.objects, dtype="uint8")
    try:
        with unfinished.open("wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def read(path: Path) -> Checkpoint:
    """Reads a checkpoint and checks every byte of it.

    Raises:
        TornCheckpoint: If the file is not what was written.
    """
    with _opened(path) as file:
        facts = json.loads(file[_FACTS].tobytes())
        objects = file[_OBJECTS].tobytes()
        names = sorted(set(file.files) - {_FACTS, _OBJECTS})
        return Checkpoint(facts, [file[name] for name in names], objects)


def read_facts(path: Path) -> dict[str, Any] | None:
    """Reads only where a checkpoint was; None where that cannot be read."""
    facts: dict[str, Any] | None = None
    with contextlib.suppress(TornCheckpoint), _opened(path) as file:
        facts = json.loads(file[_FACTS].tobytes())
    return facts


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            yield file
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise TornCheckpoint(f"{path.name} is damaged ({error or type(error).__name__})") from error


def _plain(array: Any) -> Any:
    """An array of a type that every NumPy can read; others, such as bfloat16, as their bits."""
    if array.dtype.kind != "V":
        return array
    return array.view({1: "uint8", 2: "uint16", 4: "uint32"}[array.dtype.itemsize])


def _sync_directory(folder: Path) -> None:
    """Makes the renaming itself survive a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
