"""The terminal: one place that decides on width and colour, so that every command looks alike."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console


def console(*, error: bool = False) -> Console:
    """Returns a console that colours only terminals and never breaks lines that will be copied."""
    return Console(stderr=error, highlight=False, soft_wrap=True)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Shows that something longer than a second is going on; silent where nobody watches."""
    screen = console(error=True)
    if not screen.is_terminal:
        yield
        return
    with screen.status(what):
        yield
