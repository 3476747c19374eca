"""The terminal: one place that decides on width and colour, so that every command looks alike."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.status import Status


def console(*, error: bool = False) -> Console:
    """Returns a console that colours only terminals and never breaks lines that will be copied."""
    return Console(stderr=error, highlight=False, soft_wrap=True)


@contextmanager
def show_progress(what: str) -> Iterator[None]:
    """Shows that something longer than a second is going on, and how far it is; silent outside of a terminal."""
    screen = console(error=True)
    if not screen.is_terminal:
        yield
        return
    log = logging.getLogger("memfit")
    level = log.level
    with screen.status(what) as status:
        handler = _StatusHandler(status, what)
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        try:
            yield
        finally:
            log.removeHandler(handler)
            log.setLevel(level)


class _StatusHandler(logging.Handler):
    """Shows what memfit logs beside what is going on."""

    def __init__(self, status: Status, what: str) -> None:
        super().__init__(logging.INFO)
        self._status, self._what = status, what

    def emit(self, record: logging.LogRecord) -> None:
        self._status.update(f"{self._what}: {record.getMessage()}")
