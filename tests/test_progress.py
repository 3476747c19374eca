"""What is shown of what takes long, in a terminal and outside of one."""

import io
import logging
import time
from typing import Any

import pytest

import memfit
from memfit import progress
from memfit.progress import LOGGER, Progress, shows_progress

_log = logging.getLogger(LOGGER)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_QUICK", 0.0), ("_BETWEEN_LINES", 0.02), ("_STILL", 0.05), ("_REDRAWN", 0.01)):
        monkeypatch.setattr(progress, name, seconds)


def _show(stream: io.StringIO, **more: Any) -> str:
    with Progress(stream, "planning", "looking", **more):
        _log.info("recording step 1")
        time.sleep(0.3)
    return stream.getvalue()


def test_lines_outside_of_a_terminal_tell_what_goes_on_and_for_how_long():
    lines = _show(io.StringIO()).splitlines()
    assert lines[0] == "memfit: planning, 0 s: recording step 1"
    assert len(lines) > 1  # it is still going on


def test_what_takes_long_says_how_the_next_time_is_spared_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "_LONG", 0.1)
    stream = io.StringIO()
    with Progress(stream, "planning"):
        _log.info("searching", extra={"next_time": "kept for the next time"})
        _log.info("recording step 1")
        time.sleep(0.4)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "memfit: planning, 0 s: recording step 1"
    assert lines[-1] == "memfit: planning, 0 s (kept for the next time): recording step 1"


def test_a_terminal_has_one_line_that_goes_in_the_end():
    text = _show(_Terminal())
    assert "\r\x1b[Kmemfit: planning, 0 s: recording step 1" in text
    assert "\n" not in text
    assert text.endswith("\r\x1b[K")


def test_what_is_done_inside_of_something_is_its_next_stage():
    outer, inner = io.StringIO(), io.StringIO()
    with Progress(outer, "fitting", "looking"):
        _show(inner)
    assert inner.getvalue() == ""
    assert "memfit: fitting, 0 s: recording step 1\n" in outer.getvalue()
    assert "planning" in _show(io.StringIO())  # and afterwards it is shown by itself again


def test_nothing_is_shown_inside_of_what_is_quiet():
    outer, inner = io.StringIO(), io.StringIO()
    with Progress(outer, quiet=True):
        _show(inner)
    assert outer.getvalue() == inner.getvalue() == ""


def test_a_function_shows_on_the_error_stream_what_it_does(capsys: pytest.CaptureFixture[str]):
    @shows_progress("counting")
    def count(to: int) -> int:
        _log.info("at one")
        time.sleep(0.1)
        return to

    assert count(3) == 3
    assert "memfit: counting, 0 s: at one\n" in capsys.readouterr().err


@pytest.mark.parametrize(("function", "what"), [(memfit.plan, "planning"), (memfit.estimate, "estimating")])
def test_plans_and_estimates_show_what_they_do(function, what, monkeypatch: pytest.MonkeyPatch):
    shown: list[str] = []
    real = Progress.__init__
    monkeypatch.setattr(
        Progress, "__init__", lambda self, stream, what: (shown.append(what), real(self, stream, what))[1]
    )
    with pytest.raises(memfit.InvalidInput):
        function(object(), 8)
    assert shown == [what]
