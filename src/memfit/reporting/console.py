"""The terminal: one place that decides on width and colour, so that every command looks alike."""

import sys

from rich.console import Console

from memfit.progress import Progress


def console(*, error: bool = False) -> Console:
    """Returns a console that colours only terminals and never breaks lines that will be copied."""
    return Console(stderr=error, highlight=False, soft_wrap=True)


def show_progress(what: str, stage: str = "") -> Progress:
    """Returns what shows that something longer than a second is going on, and how far it is."""
    return Progress(sys.stderr, what, stage)
