"""Which line lets something grow: for a short while, sizes are compared before and behind each line of the user's.

Only the thread that is watched can be traced, and it has to begin that itself: Python's pending calls let it, at
the next moment between two instructions. Functions of libraries cost one event when they are called, and are left
alone. But all of Python is slower meanwhile: the time is taken, and the tracing ends when it has cost what it may.

For what grows in a thread that cannot be traced, the user's code is read: where it adds to a holder.
"""

import ast
import ctypes
import functools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from memfit.training.leaks.holders import Holding
from memfit.training.leaks.user_code import Traced, is_users, place, users_frame

# What a traced thread loses of its processor time: assumed, not measured (Python at a quarter of its speed).
LOST = 0.75
# Reading the clock takes longer than an event.
_EVENTS_BETWEEN = 16
# A line that was seen to add something this often is the line.
_ENOUGH = 3
_ADDING = {"append", "appendleft", "extend", "add", "insert", "update", "setdefault", "put"}

_Pending = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_asked: set["LineTrace"] = set()  # kept until the main thread has begun: Python has only their address


class LineTrace:
    """Watches sizes line by line in the main thread until each was seen to grow, or the time is used up.

    Attributes:
        blamed: For each size, by which lines it grew and how often.
        seconds: The processor time that the thread has spent while it was traced.
        ended: Whether nothing is traced any more.
    """

    def __init__(self, measures: Sequence[Callable[[], int]], most_seconds: float) -> None:
        self.blamed: list[Counter[str]] = [Counter() for _ in measures]
        self.seconds = 0.0
        self._events = 0
        self._since = 0.0
        self.ended = False
        self._measures = list(measures)
        self._most = most_seconds
        self._sizes: list[int] = []
        self._line = ""
        self._frames: list[FrameType] = []
        self._begin = _Pending(self._begun)

    def start(self) -> bool:
        """Lets the main thread begin; False where it cannot be asked to."""
        _asked.add(self)
        Traced.count += 1
        return ctypes.pythonapi.Py_AddPendingCall(self._begin, None) == 0

    def stop(self) -> None:
        """Ends it at the next event; at once in the main thread itself."""
        self._most = -1.0
        if threading.current_thread() is threading.main_thread():
            self._end()

    def _begun(self, _: object) -> int:
        _asked.discard(self)
        # A debugger or a coverage tool that traces already goes first.
        if self.ended or sys.gettrace() is not None or not self._read_sizes():
            self._end()
            return 0
        frame: FrameType | None = sys._getframe().f_back
        innermost = users_frame(frame)
        self._line = "" if innermost is None else place(innermost)
        while frame is not None:
            if is_users(frame.f_code.co_filename) and frame.f_trace is None:
                frame.f_trace = self._trace
                self._frames.append(frame)
            frame = frame.f_back
        self._since = time.thread_time()
        sys.settrace(self._trace)
        return 0

    def _read_sizes(self) -> bool:
        try:
            self._sizes = [measure() for measure in self._measures]
        except Exception:  # gone meanwhile
            return False
        return True

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        self._events += 1
        if self._events % _EVENTS_BETWEEN == 0:
            self.seconds = time.thread_time() - self._since
        if self.seconds > self._most:
            self._end()
            return None
        if not is_users(frame.f_code.co_filename):
            return None
        before = self._sizes
        if not self._read_sizes():
            self._end()
            return None
        for number, (old, new) in enumerate(zip(before, self._sizes, strict=True)):
            if new > old and self._line:
                self.blamed[number][self._line] += 1
        if all(max(lines.values(), default=0) >= _ENOUGH for lines in self.blamed):
            self._end()
            return None
        if event == "return":  # the caller's line goes on
            outer = users_frame(frame.f_back)
            self._line = "" if outer is None else place(outer)
        elif event != "call":
            self._line = place(frame)
        return self._trace

    def _end(self) -> None:
        if not self.ended:
            if getattr(sys.gettrace(), "__self__", None) is self:
                sys.settrace(None)
            for frame in self._frames:
                frame.f_trace = None
            self._frames.clear()
            self._measures.clear()
            self._sizes.clear()
            self.ended = True
            Traced.count -= 1


def find_adding_lines(holding: Holding) -> list[str]:
    """Returns the lines, as `file:line`, that add to what a holding's name refers to; none where it has no name."""
    name = holding.name
    file = _file_of(holding)
    if not name or holding.kind != "container" or file is None or not is_users(file):
        return []
    inside = _lines_of(holding.parent) if isinstance(holding.parent, CodeType) else None
    return [f"{file}:{line}" for line in _lines(file, name) if inside is None or line in inside]


def _lines_of(code: CodeType) -> range:
    """The lines of a function, those it defines inside included: the same name elsewhere is another."""
    parts = [code, *(part for part in code.co_consts if isinstance(part, CodeType))]
    return range(code.co_firstlineno, 1 + max(line or 0 for part in parts for _, _, line in part.co_lines()))


def _file_of(holding: Holding) -> str | None:
    """The file in which the holder's name is used: a function's, or that of an object's class."""
    parent = holding.parent
    if isinstance(parent, CodeType):
        return parent.co_filename
    if isinstance(parent, dict):
        file = parent.get("__file__")
    else:
        file = getattr(sys.modules.get(type(parent).__module__), "__file__", None)
    return file if isinstance(file, str) else None


@functools.lru_cache(maxsize=100)
def _lines(file: str, name: str) -> list[int]:
    try:
        tree = ast.parse(Path(file).read_text())
    except (OSError, SyntaxError, ValueError):
        return []
    return sorted(set(_adding(tree, name)))


def _adding(tree: ast.AST, name: str) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in _ADDING and _is_called(node.func.value, name):
                yield node.lineno
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript) and _is_called(target.value, name):
                    yield node.lineno
        elif isinstance(node, ast.AugAssign) and _is_called(node.target, name):
            yield node.lineno


def _is_called(node: ast.AST, name: str) -> bool:
    return (isinstance(node, ast.Name) and node.id == name) or (
        isinstance(node, ast.Attribute) and node.attr == name
    )
