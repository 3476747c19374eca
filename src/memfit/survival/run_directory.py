"""The directory of a run: what it belongs to, so that a checkpoint never meets another script."""

import contextlib
import fcntl
import hashlib
import json
import os
import random
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from memfit.compat.versions import read_versions
from memfit.errors import InvalidInput
from memfit.scaling.cluster import Cluster
from memfit.survival.checkpoints import find_position
from memfit.survival.positions import say_from
from memfit.survival.settings import RunSettings
from memfit.survival.supervision import finished_name

_RECORD = "run.json"
_PLANNED_FOR = ("memory", "allow", "ranks", "shard_optimizer")


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
        settings: What it is asked to do.
    """

    script: str
    content: str
    arguments: list[str]
    versions: dict[str, str]
    seed: int
    begun: float
    settings: RunSettings


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
    directory: Path,
    script: Path,
    arguments: Sequence[str],
    settings: RunSettings,
    *,
    resume: bool,
    kept: Sequence[str] = (),
) -> RunIdentity:
    """Prepares the directory for a run that begins, or goes on.

    A run that begins anew moves an unfinished one aside, to the same name with ".old". If the new one is
    stopped before it has a checkpoint, it is the old one that goes on.

    Args:
        directory: What `directory_of` says.
        script: The script.
        arguments: Its arguments.
        settings: What the run is asked to do; its seed is that of a run that begins, None for a random one.
        resume: Whether to go on with the run that is there.
        kept: The settings that a run keeps that goes on.

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
        random.SystemRandom().randrange(2**31) if settings.seed is None else settings.seed,
        time.time(),
        settings,
    )
    old = _set_aside(directory)
    try:
        if resume and has_checkpoint(old) and not has_checkpoint(directory):
            _move(old, directory)
        if resume and (directory / _RECORD).exists():
            earlier = _read_identity(directory)
            _check(earlier, record)
            as_before = {name: getattr(earlier.settings, name) for name in kept}
            record = replace(earlier, settings=replace(settings, **as_before))
            _forget_plans(directory, earlier.settings, record.settings)
        else:
            if has_checkpoint(directory):
                _move(directory, old)
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
        (directory / _RECORD).write_text(json.dumps(asdict(record), indent=2) + "\n")
    except (OSError, ValueError, TypeError) as error:
        raise _cannot_write(directory, error) from error
    return record


def describe_unfinished(directory: Path, script: Path, arguments: Sequence[str]) -> str:
    """Says what becomes of an unfinished run when the script is started anew, and how to go on with it."""
    position = find_position(directory)
    stopped = "" if position is None else f" (stopped {say_from(position)})"
    settings = read_settings(directory)
    return (
        f"An unfinished run of this script was found{stopped}. Its checkpoints are kept in "
        f"{os.path.relpath(_set_aside(directory))} until this new run has finished. To continue it instead, stop "
        f"this one before it trains: {settings.command(script, arguments)}"
    )


def read_settings(directory: Path) -> RunSettings:
    """Returns what the run in a directory was asked to do; the defaults where another version wrote it."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return _read_identity(directory).settings
    return RunSettings()


def _read_identity(directory: Path) -> RunIdentity:
    plain = json.loads((directory / _RECORD).read_text())
    return RunIdentity(**{**plain, "settings": RunSettings(**plain.get("settings", {}))})


def _set_aside(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.old")


def remove_directory(directory: Path) -> None:
    """Removes what a run has left that has finished, and an unfinished one before it."""
    for folder in (directory, _set_aside(directory)):
        shutil.rmtree(folder, ignore_errors=True)


def _move(directory: Path, to: Path) -> None:
    shutil.rmtree(to, ignore_errors=True)
    directory.rename(to)


def _forget_plans(directory: Path, before: RunSettings, now: RunSettings) -> None:
    """Lets calls of fit() that have not ended be planned anew, where they are asked for something else."""
    if all(getattr(before, name) == getattr(now, name) for name in _PLANNED_FOR):
        return
    for plan in directory.glob("plan-*.json"):
        if not (directory / finished_name(int(plan.stem.split("-")[1]))).exists():
            plan.unlink()


def has_checkpoint(directory: Path) -> bool:
    """Whether there is anything to go on from."""
    return any(directory.glob("*.npz"))


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keeps a second `memfit run` of the same script and arguments out, while the first one lives.

    Raises:
        InvalidInput: If another process has the lock, or the place cannot be written.
    """
    path = directory.with_name(f"{directory.name}.lock")
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
