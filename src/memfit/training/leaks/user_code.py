"""What is the user's own: their files, the frames that run them, and what these call by name."""

import inspect
import os
import sys
import sysconfig
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from memfit.compat.tf_graphs import traces_functions

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
    namespaces = [] if main is None else [vars(main)]
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and module is not main:
            names = object.__getattribute__(module, "__dict__")  # `vars` would let a lazy module load itself
            file = names.get("__file__")
            if isinstance(file, str) and is_users(file):
                namespaces.append(names)
    return namespaces


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


class Traced:
    """Counts who traces. While a function is traced, Python writes the copy of its variables back into it."""

    count = 0


def read_locals(frame: FrameType) -> dict[str, Any]:
    """Returns the variables of a frame, and leaves no copy of them behind that would keep them alive."""
    names: Mapping[str, Any] = frame.f_locals
    values = dict(names)
    copied = _COPIES and bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED) and isinstance(names, dict)
    # Referred to by the frame and by us: a third one is the user's, who called locals(). A copy that is written
    # back must never be emptied: the function would lose its variables.
    if copied and not Traced.count and frame.f_trace is None and sys.getrefcount(names) <= 3:
        names.clear()  # type: ignore[attr-defined]
    return values


def place(frame: FrameType) -> str:
    """Returns where a frame is, as `file:line`."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def line_that_traces(thread: int) -> str:
    """Returns the user's line that lets TensorFlow trace a function right now; empty where none does."""
    caller = None
    for frame in frames_of(thread):
        if traces_functions(frame.f_code):
            return "" if caller is None else place(caller)
        if is_users(frame.f_code.co_filename):
            caller = frame
    return ""
