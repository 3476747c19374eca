"""What notebooks ask of every room: objects as HTML, and a line that changes."""

import sys
from collections.abc import Callable
from importlib import import_module


class Shown:
    """What a notebook shows as HTML; everything else prints its `repr`."""

    def _repr_html_(self) -> str:
        # By name, because objects do not know the room that shows them: it is below theirs.
        return str(import_module("memfit.reporting.notebook").render(self))


def open_notebook_line() -> Callable[[str], None] | None:
    """Opens a line in the output of a notebook's cell.

    Returns:
        What changes its text; None where this process is not the kernel of a notebook.
    """
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if ipython is None or not hasattr(shell, "kernel"):
        return None
    line = ipython.display.display({"text/plain": ""}, raw=True, display_id=True)
    return lambda text: line.update({"text/plain": text}, raw=True)
