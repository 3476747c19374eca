"""The terminal."""

import io
import logging

from rich.console import Console

from memfit.reporting import console


def test_what_memfit_logs_is_shown_beside_what_is_going_on(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(
        console, "console", lambda error: Console(file=stream, force_terminal=True, width=100)
    )
    log = logging.getLogger("memfit")
    with console.working("Compiling"):
        log.info("batch %d", 64)
        assert log.handlers[-1]._status.status == "Compiling: batch 64"
    assert not log.handlers


def test_nothing_is_shown_where_nobody_watches(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(console, "console", lambda error: Console(file=stream, force_terminal=False))
    with console.working("Compiling"):
        logging.getLogger("memfit").info("batch 64")
    assert stream.getvalue() == ""
