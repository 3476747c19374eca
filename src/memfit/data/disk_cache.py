"""The folder of disk caches: one per set of files and settings, bounded, the longest unused goes first."""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from memfit.data.stores import KEPT, DiskStore, try_lock
from memfit.errors import InvalidInput
from memfit.sizes import Size, to_plain

# Part of every key: change it when decoding or the layout of a cache changes.
_VERSION = 1
_NAMES = ("images.npy", "states.npy", "about.json", "users.lock", "writer.lock")


@dataclass(frozen=True)
class CacheEntry:
    """One disk cache.

    Attributes:
        key: What names it: a hash of the files' identity and of every setting.
        size: Its bytes when complete.
        images: How many images it is for.
        kept: How many are in it.
        source: The folder common to all files.
        used: When it was last used, in seconds since 1970.
        in_use: Whether a process uses it now.
    """

    key: str
    size: Size
    images: int
    kept: int
    source: str
    used: float
    in_use: bool

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as plain data."""
        return to_plain(self)


def cache_folder() -> Path:
    """Returns where disk caches are: $MEMFIT_CACHE, else the user's cache folder; 0 and 1 only mean off and on."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    own = os.environ.get("MEMFIT_CACHE", "")
    return Path(home) / "memfit" if own in ("", "0", "1") else Path(own)


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file under another name and renames it: a reader sees all of it, or what was there before.

    Raises:
        OSError: If it cannot be written; nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=".", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def cache_limit(folder: Path) -> int:
    """Returns how many bytes all caches in `folder` may take: $MEMFIT_CACHE_LIMIT, else half of what is free."""
    text = os.environ.get("MEMFIT_CACHE_LIMIT")
    available = _free(folder) + sum(entry.size for entry in entries(folder))
    return Size(text, of=available) if text else available // 2


def cache_key(paths: Sequence[str], settings: dict[str, Any]) -> str:
    """Returns the name of a cache: another one for any other file, size, time of change or setting."""
    digest = hashlib.sha256(json.dumps([_VERSION, settings], sort_keys=True).encode())
    for path in paths:
        try:
            stat = os.stat(path)  # noqa: PTH116 - a Path object per file costs more than the stat
            identity = f"{stat.st_size} {stat.st_mtime_ns}"
        except OSError:
            identity = "missing"
        digest.update(f"{os.path.abspath(path)}\0{identity}\0".encode(errors="surrogateescape"))  # noqa: PTH100
    return digest.hexdigest()[:24]


def open_cache(
    folder: Path, paths: Sequence[str], shape: tuple[int, ...], settings: dict[str, Any]
) -> DiskStore | None:
    """Returns the cache for these files and settings, made if it is not there; None where it has no room."""
    directory = folder / cache_key(paths, settings)
    needed = len(paths) * int(np.prod(shape))
    if not _is_whole(directory, len(paths), shape):
        if directory.exists():
            remove(folder, directory.name)
        if not _make_room(folder, needed):
            return None
        _create(directory, paths, shape)
    os.utime(directory / "about.json")
    return DiskStore(directory, len(paths), shape)


def entries(folder: Path) -> list[CacheEntry]:
    """Returns the caches in a folder, the most recently used first."""
    directories = folder.iterdir() if folder.is_dir() else ()
    listed = [_entry(directory) for directory in directories if directory.is_dir()]
    return sorted((entry for entry in listed if entry is not None), key=lambda entry: -entry.used)


def remove(folder: Path, key: str) -> None:
    """Deletes a cache.

    Raises:
        InvalidInput: If there is no such cache, or a process uses it.
    """
    directory = folder / key
    if "/" in key or key in ("", ".", "..") or not (directory / "about.json").exists():
        raise InvalidInput("There is no such cache", received=key, remedy="List them with: memfit cache ls")
    with (directory / "users.lock").open("a") as lock:
        if not try_lock(lock):
            raise InvalidInput(
                "A cache in use cannot be removed",
                received=key,
                remedy="Wait until the training that uses it ends",
            )
        # Out of sight at once: whoever looks meanwhile sees a whole cache or none.
        grave = Path(tempfile.mkdtemp(prefix=".removed-", dir=folder))
        directory.rename(grave / key)
        shutil.rmtree(grave)


def _create(directory: Path, paths: Sequence[str], shape: tuple[int, ...]) -> None:
    """Makes an empty cache under another name and renames it: it is there as a whole or not at all."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=directory.parent))
    count = len(paths)
    # This writes the header and sets the length; the file is sparse until images are put in.
    np.lib.format.open_memmap(draft / "images.npy", "w+", np.uint8, (count, *shape))
    np.save(draft / "states.npy", np.zeros(count, np.uint8))
    common = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in paths])  # noqa: PTH100, PTH120
    about = {"images": count, "shape": shape, "source": common, "made": time.time()}
    (draft / "about.json").write_text(json.dumps(about))
    for name in ("users.lock", "writer.lock"):
        (draft / name).touch()
    try:
        draft.rename(directory)
    except OSError:  # another process was first: its cache is as good
        shutil.rmtree(draft)


def _is_whole(directory: Path, count: int, shape: tuple[int, ...]) -> bool:
    """Whether all files of a cache are there and have the right length."""
    if not all((directory / name).exists() for name in _NAMES):
        return False
    try:
        images = np.load(directory / "images.npy", mmap_mode="r")
        states = np.load(directory / "states.npy")
    except (OSError, ValueError):
        return False
    return images.shape == (count, *shape) and states.shape == (count,) and images.dtype == np.uint8


def _make_room(folder: Path, needed: int) -> bool:
    """Removes the longest unused caches until there is room; False where that is not enough."""
    limit = cache_limit(folder)
    caches = entries(folder)
    taken = sum(int(entry.size) for entry in caches)
    idle = [entry for entry in caches if not entry.in_use]
    if needed > limit - sum(entry.size for entry in caches if entry.in_use):
        return False
    while idle and (taken + needed > limit or needed > _free(folder)):
        oldest = idle.pop()
        with contextlib.suppress(InvalidInput):  # another process began to use it just now
            remove(folder, oldest.key)
            taken -= oldest.size
    return taken + needed <= limit and needed <= _free(folder)


def _entry(directory: Path) -> CacheEntry | None:
    try:
        about = json.loads((directory / "about.json").read_text())
        states = np.load(directory / "states.npy")
        used = (directory / "about.json").stat().st_mtime
        size = (directory / "images.npy").stat().st_size
        with (directory / "users.lock").open("a") as lock:
            in_use = not try_lock(lock)
    except (OSError, ValueError):
        return None
    kept = int(np.count_nonzero(states == KEPT))
    return CacheEntry(directory.name, Size(size), about["images"], kept, about["source"], used, in_use)


def _free(folder: Path) -> int:
    """Bytes free on the disk where a folder is, or will be."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
