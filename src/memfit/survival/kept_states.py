"""The states that ranks keep when another rank is lost: written by survivors, the newest becomes a checkpoint.

They go to shared memory first, which is fast and always there on Linux, and the supervisor moves the newest of them
to the run's directory. Survivors may be one batch apart; the newest is valid, as an update needs all ranks' sums.
"""

import contextlib
import hashlib
import os
import shutil
from pathlib import Path

from memfit.survival.checkpoint_files import Checkpoint, read_facts, write
from memfit.survival.checkpoints import find_position, next_path

_SHARED_MEMORY = Path("/dev/shm")
_SPARE = 1.2  # of a state's size has to be free there: a full /dev/shm ends other programs
_PATTERN = "rank-*.npz"


def keep(checkpoint: Checkpoint, directory: Path, rank: int) -> Path:
    """Writes the state of a rank, in shared memory where there is room, otherwise in the run's directory.

    Returns:
        Its file.

    Raises:
        OSError: If it can be written in neither.
    """
    for folder in _folders(directory):
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            if shutil.disk_usage(folder).free > _SPARE * checkpoint.size:
                path = folder / f"rank-{rank:04d}.npz"
                write(checkpoint, path)
                return path
        except OSError:
            if folder.parent != _SHARED_MEMORY:
                raise
    raise OSError(f"there is no room for {checkpoint.size:,} bytes in {directory}")


def is_writing(directory: Path, rank: int) -> bool:
    """Whether a rank is just writing its state."""
    return any((folder / f"rank-{rank:04d}.unfinished").exists() for folder in _folders(directory))


def take_over_newest(directory: Path) -> None:
    """Makes the newest state that a rank has kept the last checkpoint of the run, unless there is a newer one."""
    states = [(path, read_facts(path)) for folder in _folders(directory) for path in folder.glob(_PATTERN)]
    kept = [
        ((facts["call"], facts["epoch"], facts["batch"]), path) for path, facts in states if facts is not None
    ]
    if kept:
        position, path = max(kept)
        reached = find_position(directory)
        if reached is None or position > reached:
            target = next_path(directory)
            unfinished = target.with_suffix(".unfinished")
            shutil.copyfile(path, unfinished)
            unfinished.replace(target)
    forget_kept(directory)


def forget_kept(directory: Path) -> None:
    """Removes what ranks have kept."""
    for folder in _folders(directory):
        shutil.rmtree(folder, ignore_errors=True)


def _folders(directory: Path) -> list[Path]:
    """Where states are kept: the same for all processes of a run, another user's never."""
    name = hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:12]
    folders = [directory / "kept"]
    with contextlib.suppress(OSError):
        if _SHARED_MEMORY.is_dir() and os.access(_SHARED_MEMORY, os.W_OK):
            folders.insert(0, _SHARED_MEMORY / f"memfit-{os.getuid()}-{name}")
    return folders
