"""Who tells a person what is planned: `fit` through Keras's own channel, `memfit run` on the error stream."""

import logging
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import keras

from memfit.training.progress import Progress
from memfit.training.summary import Line

_told: list[Sequence[Line]] = []  # what was told last in this process: a loop of equal calls tells it once


class Teller(Protocol):
    """Tells a person what is planned.

    Attributes:
        as_flags: Whether advice is written as flags of the command line.
    """

    as_flags: bool

    def tell(self, lines: Sequence[Line]) -> None:
        """Shows some lines."""

    def progress(self) -> AbstractContextManager[Any]:
        """Shows what planning does while a `with` block lasts."""


class KerasTeller:
    """Tells as Keras shows its progress bar: on the standard output, or in the log where Keras was told so.

    Args:
        verbose: As given to `fit`; with 0 nothing is told.
    """

    as_flags = False

    def __init__(self, verbose: Any) -> None:
        self._silent = verbose == 0

    def tell(self, lines: Sequence[Line]) -> None:
        """Shows some lines, unless they are what was shown last."""
        if self._silent or [*lines] in _told:
            return
        _told[:] = [[*lines]]
        text = "".join(f"memfit: {line.text}\n" for line in lines)
        if keras.config.is_interactive_logging_enabled():
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            logging.getLogger("memfit").info("%s", text)

    def progress(self) -> AbstractContextManager[Any]:
        """Shows progress on the error stream."""
        return nullcontext() if self._silent else Progress(sys.stderr)
