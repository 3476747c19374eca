"""The files of run records: one folder, one JSON each, written whole or not at all, the oldest removed."""

import contextlib
import json
import os
import time
from functools import lru_cache
from pathlib import Path

from memfit.data.disk_cache import cache_folder, write_whole
from memfit.errors import InvalidInput
from memfit.training.records.record import RunRecord

# Some tens of kilobytes each: what a person looks back at, and never much of a disk.
MOST_RECORDS = 200
_SUFFIX = ".json"


def records_folder() -> Path | None:
    """Returns where records are kept: $MEMFIT_RUNS, else in the user's cache folder; None with MEMFIT_RUNS=0."""
    own = os.environ.get("MEMFIT_RUNS", "")
    if own == "0":
        return None
    return cache_folder() / "runs" if own in ("", "1") else Path(own)


def file_name(begun: float, identity: str) -> str:
    """Returns the name of a record's file: sorted by name they are sorted by time."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(begun))}-{identity}{_SUFFIX}"


def write_record(record: RunRecord, folder: Path) -> Path:
    """Writes a record, whole or not at all, and returns its file.

    Raises:
        OSError: If it cannot be written; nothing is left behind.
    """
    path = folder / file_name(record.begun, record.id)
    write_whole(path, json.dumps(record.to_json(), separators=(",", ":")).encode())
    return path


def find_file(folder: Path, identity: str) -> Path | None:
    """Returns the file of a record in a folder; None where there is none."""
    return next(iter(folder.glob(f"*-{identity}{_SUFFIX}")), None)


def remove_oldest(folder: Path, most: int = MOST_RECORDS) -> None:
    """Removes the oldest records beyond so many."""
    for path in _files(folder)[most:]:
        path.unlink(missing_ok=True)


def read_record(path: Path) -> RunRecord:
    """Reads a record.

    Raises:
        InvalidInput: If the file cannot be read or holds no record.
    """
    try:
        return RunRecord.from_json(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"That file holds no record of a run ({error})", received=str(path)) from error


def runs() -> list[RunRecord]:
    """Returns the records of the trainings that memfit has run, the newest first.

    Each call of `memfit.fit`, and each `fit` under `memfit run`, leaves one: the plan, predicted and measured
    memory over time, what happened, and how it ended. They are in $MEMFIT_RUNS, else in the user's cache folder.
    """
    return [record for _, record in read_records()]


def read_records(folder: Path | None = None) -> list[tuple[Path, RunRecord]]:
    """Returns the files and records in a folder, the user's unless told, the newest first."""
    folder = records_folder() if folder is None else folder
    versions = []
    for path in [] if folder is None else _files(folder):
        with contextlib.suppress(InvalidInput, OSError):  # of another version of memfit, or being removed
            versions.append((path, _read_version(path, path.stat().st_mtime_ns)))
    return sorted(versions, key=lambda each: -each[1].begun)  # names of files tell whole seconds


def find_record(name: str, folder: Path | None = None) -> tuple[Path, RunRecord]:
    """Finds a record by what a person types, and returns its file and itself.

    Args:
        name: The first letters of its id, "last", "last-1" for the one before (and so on), or a file.
        folder: Where to look; the user's folder unless told.

    Raises:
        InvalidInput: If there is none, or several begin with these letters.
    """
    if name.endswith(_SUFFIX):
        return Path(name), read_record(Path(name))
    there = read_records(folder)
    if name == "last" or name.startswith("last-"):
        number = name.removeprefix("last").removeprefix("-") or "0"
        matches = there[int(number) : int(number) + 1] if number.isdigit() else []
    else:
        matches = [each for each in there if each[1].id.startswith(name)]
    if len(matches) != 1:
        raise InvalidInput(
            "A run is named by its id, by `last`, or by the file of its record",
            received=f"{name}, which matches {len(matches)} of {len(there)} records",
            remedy="List them with: memfit runs",
        )
    return matches[0]


@lru_cache(MOST_RECORDS)
def _read_version(path: Path, changed: int) -> RunRecord:
    """Reads a file that changed then: a live view looks every second, and most files do not change any more."""
    return read_record(path)


def _files(folder: Path) -> list[Path]:
    """The files of a folder, the newest first."""
    return sorted(folder.glob(f"[!.]*{_SUFFIX}"), reverse=True)
