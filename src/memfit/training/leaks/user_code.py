"""What is the user's own: their files, the frames that run them, and what these call by name."""

import inspect
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

_PACKAGE = str(Path(__file__).parents[2]) + "/"
_NAMES = ("stdlib", "platstdlib", "purelib", "platlib")
_INSTALLED = {sysconfig.get_paths()[name] + "/" for name in _NAMES} | {_PACKAGE}
_LIBRARIES = tuple(_INSTALLED | {os.path.realpath(folder) + "/" for folder in _INSTALLED})
# Frames of these are Python's and TensorFlow's own, written while a program runs.
_WRITTEN = ("<frozen", "<__array_function__", "<attrs", "<decorator")
# Until Python 3.13, `f_locals` of a function is a copy that stays with its frame.
_COPIES = sys.version_info < (3, 13)


@lru_cache(maxsize=10_000)
def is_users(file: str) -> bool:
    """Whether a file is the user's, and not Python's, memfit's or an installed package's."""
    if file.startswith((*_WRITTEN, *_LIBRARIES)) or "__autograph_generated_file" in file:
        return False
    return file.startswith("<") or not os.path.realpath(file).startswith(_LIBRARIES)


def users_modules() -> list[dict[str, Any]]:
    """Returns the names of the modules that are the user's: of their script or notebook first."""
    return _users_modules(len(sys.modules))


@lru_cache(maxsize=1)
def _users_modules(count: int) -> list[dict[str, Any]]:
    main = sys.modules.get("__main__")
    found = [] if main is None else [vars(main)]
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and module is not main:
            names = object.__getattribute__(module, "__dict__")  # `vars` would let a lazy module load itself
            file = names.get("__file__")
            if isinstance(file, str) and is_users(file):
                found.append(names)
    return found


def frames_of(thread: int) -> list[FrameType]:
    """Returns what a thread is running, the outermost first, without what memfit runs in it."""
    frame = sys._current_frames().get(thread)
    frames = []
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def users_frame(frame: FrameType | None) -> FrameType | None:
    """Returns the innermost frame of the user's from here outwards."""
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def read_locals(frame: FrameType) -> dict[str, Any]:
    """Returns the variables of a frame, and leaves no copy of them behind that would keep them alive."""
    names: Mapping[str, Any] = frame.f_locals
    values = dict(names)
    # Referred to by the frame and by us: a third one is the user's, who called locals().
    copied = _COPIES and bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)
    if copied and isinstance(names, dict) and sys.getrefcount(names) <= 3:
        names.clear()
    return values


def place(frame: FrameType) -> str:
    """Returns where a frame is, as `file:line`."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def lines_outwards(frame: FrameType | None) -> Iterator[str]:
    """Yields the places of the user's frames, the innermost first."""
    while (frame := users_frame(frame)) is not None:
        yield place(frame)
        frame = frame.f_back
