"""A recording that starts before it is known what to record: it waits, does what it is told first, or ends."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from memfit.planning.candidates import Way
from memfit.planning.early_recording import EarlyRecording, NotWanted


def _compute(model: list[Way], way: Way) -> None:
    model.append(way)


def _started() -> tuple[EarlyRecording, list[Any], threading.Event]:
    """A recording in a thread instead of a process; what became of it, and when it has ended."""
    outcome: list[Any] = []
    ended = threading.Event()

    def start(prepare: Callable[[Any], None], copied: Callable[[], None]) -> Any:
        copied()
        model: list[Way] = []
        try:
            prepare(model)
            outcome.append(model)
            return model
        except NotWanted:
            outcome.append("not wanted")
            raise
        finally:
            ended.set()

    return EarlyRecording(start, _compute), outcome, ended


def test_it_records_what_it_is_told_first() -> None:
    early, outcome, ended = _started()
    assert not ended.wait(0.2)  # it waits
    assert outcome == []
    early.tell(Way(None, True))
    early.tell(Way())
    assert early.way == Way(None, True)
    recorded: Any = early.result()
    assert recorded == [Way(None, True)]


def test_it_ends_where_nobody_wants_it() -> None:
    early, outcome, ended = _started()
    early.end()
    assert ended.wait(10)
    assert outcome == ["not wanted"]
    with pytest.raises(NotWanted):
        early.result()


def test_a_model_that_cannot_be_copied_is_told_and_nobody_waits() -> None:
    def start(prepare: Any, copied: Any) -> Any:
        raise ValueError("not copied")

    early = EarlyRecording(start, _compute)
    early.tell(Way())
    with pytest.raises(ValueError, match="not copied"):
        early.result()
