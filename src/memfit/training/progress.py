"""What something long is doing, and for how long: a line that moves in a terminal or a notebook, or lines."""

import logging
import shutil
import threading
import time
from collections.abc import Callable
from typing import Any, Self, TextIO

from memfit.showing import open_notebook_line

# What memfit does step by step is logged here, beside the warnings and notes of the logger "memfit".
LOGGER = "memfit.progress"
_QUICK = 1.5  # seconds in which a plan from disk or a bound is there: nothing has to be said
_BETWEEN_LINES = 5.0  # outside of a terminal, where lines stay
_STILL = 20.0  # after which a line says that the same is still going on
_REDRAWN = 0.5


class Progress(logging.Handler):
    """Shows on a stream what is logged as progress, while a `with` block lasts.

    Args:
        stream: Where to show it; where it is not a terminal, without control codes.
        what: What is going on.
        stage: What is done first.
    """

    def __init__(self, stream: TextIO, what: str = "planning", stage: str = "looking at the model") -> None:
        super().__init__(logging.INFO)
        self._stream, self._terminal = stream, stream.isatty()
        self._what, self._stage = what, stage
        self._begun = time.monotonic()
        self._shown_at = self._begun - _BETWEEN_LINES
        self._shown = ""
        self._notebook: Callable[[str], None] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def emit(self, record: logging.LogRecord) -> None:
        """Takes the next thing that is done."""
        self._stage = record.getMessage()

    def __enter__(self) -> Self:
        log = logging.getLogger(LOGGER)
        self._before = log.level, log.propagate
        log.addHandler(self)
        log.setLevel(logging.INFO)
        log.propagate = False
        self._thread.start()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
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
        text = f"memfit: {self._what}, {now - self._begun:.0f} s: {stage}"
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
