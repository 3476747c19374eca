"""Progress on a terminal."""

import io
import logging

import pytest
from rich.console import Console

from memfit.reporting import console


def _terminal(monkeypatch: pytest.MonkeyPatch, *, watched: bool) -> io.StringIO:
    stream = io.StringIO()
    screen = Console(file=stream, force_terminal=watched, width=100)
    monkeypatch.setattr(console, "console", lambda error: screen)
    return stream


def test_what_memfit_logs_is_shown_beside_what_is_going_on(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = _terminal(monkeypatch, watched=True)
    log = logging.getLogger("memfit")
    with console.show_progress("Compiling"):
        log.info("batch %d", 64)
    assert "Compiling: batch 64" in stream.getvalue()
    assert not log.handlers


def test_nothing_is_shown_outside_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = _terminal(monkeypatch, watched=False)
    with console.show_progress("Compiling"):
        logging.getLogger("memfit").info("batch 64")
    assert stream.getvalue() == ""
