"""What `memfit run` tells from inside of the script's process, on its error stream."""

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from memfit.training.progress import Progress
from memfit.training.summary import Line


class StreamTeller:
    """Tells on the error stream, in bold what is strong where that is a terminal.

    Args:
        quiet: Whether to tell nothing.
    """

    as_flags = True

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet

    def tell(self, lines: Sequence[Line]) -> None:
        """Shows some lines."""
        if self._quiet:
            return
        for line in lines:
            text = f"memfit: {line.text}"
            strong = line.strong and sys.stderr.isatty()
            sys.stderr.write(f"\x1b[1m{text}\x1b[0m\n" if strong else f"{text}\n")
        sys.stderr.flush()

    def progress(self) -> AbstractContextManager[Any]:
        """Shows what planning does."""
        return nullcontext() if self._quiet else Progress(sys.stderr)
