"""The directory of a run: what it belongs to, so that a checkpoint never meets another script."""

import fcntl
import hashlib
import json
import os
import random
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from memfit.compat.versions import read_versions
from memfit.errors import InvalidInput
from memfit.scaling.cluster import Cluster

_RECORD = "run.json"


@dataclass(frozen=True)
class RunIdentity:
    """What a directory of checkpoints belongs to.

    Attributes:
        script: The script's path.
        content: A hash of the script.
        arguments: Its arguments.
        versions: Of Python and the packages whose behaviour a checkpoint depends on.
        seed: What random numbers are drawn from that the script does not seed.
        begun: When the run began, in seconds since 1970.
    """

    script: str
    content: str
    arguments: list[str]
    versions: dict[str, str]
    seed: int
    begun: float


def directory_of(
    script: Path, arguments: Sequence[str], beside: Path, cluster: Cluster | None = None
) -> Path:
    """Returns the directory for a script and its arguments; other arguments have another one.

    Args:
        cluster: Of a rank with a supervisor of its own, which has its own directory: ranks may share a file system.
    """
    key = json.dumps([str(script.resolve()), *arguments])
    rank = "" if cluster is None else f"-rank{cluster.rank}"
    return beside / ".memfit" / f"{script.stem}-{hashlib.sha256(key.encode()).hexdigest()[:8]}{rank}"


def open_directory(
    directory: Path, script: Path, arguments: Sequence[str], *, resume: bool, seed: int | None = None
) -> RunIdentity:
    """Prepares the directory for a run that begins, or goes on.

    A run that begins anew moves an unfinished one aside, to the same name with ".old".

    Args:
        directory: What `directory_of` says.
        script: The script.
        arguments: Its arguments.
        resume: Whether to go on with the run that is there.
        seed: Of a run that begins; None for a random one.

    Returns:
        What the run belongs to.

    Raises:
        InvalidInput: If the directory cannot be written, or holds the checkpoint of another script or version.
    """
    record = RunIdentity(
        str(script.resolve()),
        hashlib.sha256(script.read_bytes()).hexdigest(),
        list(arguments),
        read_versions(),
        random.SystemRandom().randrange(2**31) if seed is None else seed,
        time.time(),
    )
    try:
        if (directory / _RECORD).exists() and resume:
            earlier = RunIdentity(**json.loads((directory / _RECORD).read_text()))
            _check(earlier, record)
            return earlier
        if has_checkpoint(directory):
            old = directory.with_suffix(".old")
            shutil.rmtree(old, ignore_errors=True)
            directory.rename(old)
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        (directory / _RECORD).write_text(json.dumps(asdict(record), indent=2) + "\n")
    except (OSError, ValueError, TypeError) as error:
        raise _cannot_write(directory, error) from error
    return record


def has_checkpoint(directory: Path) -> bool:
    """Whether there is anything to go on from."""
    return any(directory.glob("*.npz"))


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keeps a second `memfit run` of the same script and arguments out, while the first one lives.

    Raises:
        InvalidInput: If another process has the lock, or the place cannot be written.
    """
    path = directory.with_suffix(".lock")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        raise _cannot_write(directory.parent, error.strerror) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise InvalidInput(
            "The same script is already running with the same arguments, and checkpoints would collide",
            received=str(directory),
            remedy="Wait for it to end, or run this one in another directory",
        ) from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def _cannot_write(directory: Path, why: object) -> InvalidInput:
    return InvalidInput(
        f"Checkpoints need a directory that can be written ({why})",
        received=str(directory),
        remedy="Run the command in a directory that you can write to",
    )


def _check(earlier: RunIdentity, now: RunIdentity) -> None:
    changed = ["the script has changed"] if earlier.content != now.content else []
    changed += [
        f"{name} was {earlier.versions.get(name, 'not there')} and is {now.versions.get(name, 'not there')}"
        for name in sorted({*earlier.versions, *now.versions})
        if earlier.versions.get(name) != now.versions.get(name)
    ]
    if changed:
        raise InvalidInput(
            "A run can only be resumed with the script and the versions it started with",
            received="; ".join(changed),
            remedy="Restore them, or start from the beginning without --resume",
        )
