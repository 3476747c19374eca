"""What `memfit run` tells from inside of the script's process, on its error stream."""

import sys
from collections.abc import Sequence

from memfit.survival.flags import as_flags
from memfit.training.summary import Line
from memfit.training.telling import Teller


class StreamTeller(Teller):
    """Tells on the error stream, in bold what is strong where that is a terminal; advice is written as flags."""

    def tell(self, lines: Sequence[Line]) -> None:
        """Shows some lines."""
        if self.quiet:
            return
        for line in lines:
            text = f"memfit: {as_flags(line.text)}"
            strong = line.strong and sys.stderr.isatty()
            sys.stderr.write(f"\x1b[1m{text}\x1b[0m\n" if strong else f"{text}\n")
        sys.stderr.flush()
