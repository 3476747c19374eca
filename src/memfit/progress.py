"""What something long is doing, and for how long: a line that moves in a terminal or a notebook, or lines."""

import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, Self, TextIO, TypeVar

from memfit.showing import open_notebook_line

P = ParamSpec("P")
T = TypeVar("T")

# What memfit does step by step is logged here, beside the warnings and notes of the logger "memfit".
LOGGER = "memfit.progress"
_QUICK = 1.5  # seconds in which a plan from disk or a bound is there: nothing has to be said
_BETWEEN_LINES = 5.0  # outside of a terminal, where lines stay
_STILL = 20.0  # after which a line says that the same is still going on
_REDRAWN = 0.5
_LONG = 60.0  # after which a person wants to know whether this comes again

_showing: list["Progress"] = []  # the one that is shown: what is done inside of it is its next stage


class Progress(logging.Handler):
    """Shows on a stream what is logged as progress, while a `with` block lasts; nothing inside of another one.

    Args:
        stream: Where to show it; where it is not a terminal, without control codes.
        what: What is going on.
        stage: What is done first.
        quiet: Whether to show nothing, nor what is inside.
    """

    def __init__(
        self,
        stream: TextIO,
        what: str = "planning",
        stage: str = "looking at the model",
        *,
        quiet: bool = False,
    ) -> None:
        super().__init__(logging.INFO)
        self._quiet = quiet
        self._stream, self._terminal = stream, stream.isatty()
        self._what, self._stage = what, stage
        self._next_time = ""
        self._begun = time.monotonic()
        self._shown_at = self._begun - _BETWEEN_LINES
        self._shown = ""
        self._notebook: Callable[[str], None] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def emit(self, record: logging.LogRecord) -> None:
        """Takes the next thing that is done; `extra={"next_time": ...}` says how the next time is spared it."""
        self._stage = record.getMessage()
        self._next_time = getattr(record, "next_time", self._next_time)

    def __enter__(self) -> Self:
        _showing.append(self)
        if self._quiet or _showing[0] is not self:
            return self
        log = logging.getLogger(LOGGER)
        self._before = log.level, log.propagate
        log.addHandler(self)
        log.setLevel(logging.INFO)
        log.propagate = False
        self._thread.start()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        _showing.remove(self)
        if not self._thread.is_alive():
            return
        self._stop.set()
        self._thread.join()
        log = logging.getLogger(LOGGER)
        log.removeHandler(self)
        log.setLevel(self._before[0])
        log.propagate = self._before[1]
        if self._notebook is not None:
            self._notebook("")
        elif self._terminal and self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _run(self) -> None:
        while not self._stop.wait(_REDRAWN):
            if time.monotonic() - self._begun >= _QUICK:
                self._show()

    def _show(self) -> None:
        now, stage = time.monotonic(), self._stage
        seconds = now - self._begun
        next_time = f" ({self._next_time})" if self._next_time and seconds >= _LONG else ""
        text = f"memfit: {self._what}, {seconds:.0f} s{next_time}{': ' * bool(stage)}{stage}"
        self._notebook = self._notebook or open_notebook_line()
        if self._notebook is not None:
            self._notebook(text)
        elif self._terminal:
            width = shutil.get_terminal_size().columns
            self._stream.write(f"\r\x1b[K{text[: width - 1]}")
        elif now - self._shown_at < (_STILL if stage == self._shown else _BETWEEN_LINES):
            return
        else:
            self._stream.write(f"{text}\n")
        self._shown, self._shown_at = stage, now
        self._stream.flush()


def shows_progress(what: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Lets a function show on the error stream what it is doing, where it takes longer than a moment.

    Args:
        what: What the function does, as "planning".
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def decorated(*args: P.args, **kwargs: P.kwargs) -> T:
            with Progress(sys.stderr, what):
                return function(*args, **kwargs)

        return decorated

    return decorate
