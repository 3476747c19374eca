"""Which line lets something grow: for a short while, sizes are compared before and behind each line of the user's.

Only the thread that is watched can be traced, and it has to begin that itself: Python's pending calls let it, at
the next moment between two instructions. Functions of libraries cost one event when they are called, and are left
alone. But all of Python is slower meanwhile: the time is taken, and the tracing ends when it has cost what it may.
"""

import ctypes
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from memfit.training.leaks.user_code import Traced, is_users, place, users_frame

# What a traced thread loses of its processor time: assumed, not measured (Python at a quarter of its speed).
LOST = 0.75
# Reading the clock takes longer than an event.
_EVENTS_BETWEEN = 16
# A line that was seen to add something this often is the line.
_ENOUGH = 3

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
