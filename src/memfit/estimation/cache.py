"""Estimates and plans that were made before, kept on disk."""

import contextlib
import hashlib
import json
import logging
import os
import pickle
import platform
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from memfit.data.disk_cache import cache_folder, write_whole
from memfit.sizes import Size, to_plain

Value = TypeVar("Value")
_log = logging.getLogger("memfit")

# What is older, or beyond so many bytes, goes, the longest unused first.
_MOST_BYTES = 256 * 2**20
_MOST_SECONDS = 30 * 24 * 3600.0
# Environment variables that change which kernels TensorFlow runs, how Keras computes, or what a pipeline holds.
_VARIABLES = ("TF_", "XLA_", "KERAS_", "OMP_", "MKL_", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True)
class Remembered:
    """Something that is kept.

    Attributes:
        key: What names it.
        about: What it is, as a person reads it.
        size: Its bytes on disk.
        made: When it was computed, in seconds since 1970.
        used: When it was last asked for.
    """

    key: str
    about: str
    size: Size
    made: float
    used: float

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as plain data."""
        return to_plain(self)


def remembered(
    key_parts: tuple[Any, ...] | None, compute: Callable[[], Value], *, about: str
) -> tuple[Value, float | None]:
    """Returns what was computed for these parts before, or computes and keeps it.

    Versions, the machine and the environment are part of every key.

    Args:
        key_parts: Everything that the value depends on, each with a `repr` that says all of it, as what
            `fingerprint` returns; None where something of that cannot be told, so that nothing is kept.
        compute: Computes the value, which has to be picklable.
        about: What it is, for `memfit cache`.

    Returns:
        The value, and when it was computed, in seconds since 1970; None where that was just now.
    """
    if key_parts is None or not is_on():
        return compute(), None
    file = _in() / hashlib.sha256(repr((_surroundings(), key_parts)).encode()).hexdigest()[:24]
    # Whatever is wrong with a file that another version or a full disk has left: it is computed again.
    with contextlib.suppress(Exception):
        head, _, body = file.read_bytes().partition(b"\n")
        value: Value = pickle.loads(zlib.decompress(body))
        os.utime(file)
        return value, float(json.loads(head)["made"])
    value = compute()
    try:
        _write(file, about, value)
    except Exception as error:  # a home that cannot be written to costs time, not the answer
        _log.info("not kept for the next time: %s", error)
    return value, None


def is_on() -> bool:
    """Whether estimates and plans are kept: not with MEMFIT_CACHE=0."""
    return os.environ.get("MEMFIT_CACHE") != "0"


def settings() -> tuple[tuple[str, str], ...]:
    """Returns the environment variables that change what a recording sees."""
    return tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith(_VARIABLES)))


def entries(folder: Path | None = None) -> list[Remembered]:
    """Returns what is kept in a cache folder, the user's unless told, the most recently used first."""
    kept = []
    for file in _in(folder).glob("[!.]*"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            with file.open("rb") as stream:
                head = json.loads(stream.readline())
            stat = file.stat()
            kept.append(Remembered(file.name, head["about"], Size(stat.st_size), head["made"], stat.st_mtime))
    return sorted(kept, key=lambda entry: -entry.used)


def remove(key: str, folder: Path | None = None) -> None:
    """Removes what is kept under a key in a cache folder, the user's unless told."""
    (_in(folder) / key).unlink(missing_ok=True)


def _in(folder: Path | None = None) -> Path:
    return (cache_folder() if folder is None else folder) / "estimates"


def _write(file: Path, about: str, value: Any) -> None:
    head = json.dumps({"about": about, "made": time.time()})
    write_whole(file, head.encode() + b"\n" + zlib.compress(pickle.dumps(value), 1))
    _make_room()


def _make_room() -> None:
    total = 0
    for entry in entries():
        total += entry.size
        if total > _MOST_BYTES or time.time() - entry.used > _MOST_SECONDS:
            remove(entry.key)


@cache
def _sources() -> str:
    """A hash of memfit itself: any change of it may change an estimate."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[1]
    for file in sorted(root.rglob("*")):
        if file.suffix in (".py", ".toml"):
            digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _surroundings() -> tuple[Any, ...]:
    """What every estimate depends on beside the model."""
    import keras
    import numpy
    import tensorflow as tf

    return (
        _sources(),
        tf.__version__,
        keras.__version__,
        numpy.__version__,
        sys.version,
        platform.platform(),
        platform.machine(),
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        settings(),
        (keras.config.floatx(), keras.config.epsilon(), keras.config.image_data_format()),
        keras.config.dtype_policy().name,
    )
