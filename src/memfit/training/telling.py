"""Who tells a person what is planned: `fit` through Keras's own channel, `memfit run` on the error stream."""

import logging
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras

from memfit.progress import Progress
from memfit.training.summary import Line

_told: list[Sequence[Line]] = []  # what was told last in this process: a loop of equal calls tells it once


class Teller:
    """Tells as Keras shows its progress bar: on the standard output, or in the log where Keras was told so.

    Args:
        quiet: Whether to tell nothing.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet

    def tell(self, lines: Sequence[Line]) -> None:
        """Shows some lines, unless they are what was shown last."""
        if self.quiet or [*lines] in _told:
            return
        _told[:] = [[*lines]]
        text = "".join(f"memfit: {line.text}\n" for line in lines)
        if keras.config.is_interactive_logging_enabled():
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            logging.getLogger("memfit").info("%s", text)

    def progress(self) -> AbstractContextManager[Any]:
        """Shows on the error stream what planning does, while a `with` block lasts."""
        return Progress(sys.stderr, quiet=self.quiet)
