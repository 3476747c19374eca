"""What `memfit run` does for a script that trains in a custom loop: it says so, and measures it."""

import sys
from pathlib import Path

from memfit.survival.settings import CUSTOM_LOOP, ProcessSettings, record_id
from memfit.survival.stream_teller import StreamTeller
from memfit.training.records.opening import Place, new_record
from memfit.training.records.recorder import Recorder
from memfit.training.summary import Line


def record_loop(settings: ProcessSettings, line: str) -> Recorder:
    """Says that a script's loop is measured and not changed, and begins to measure.

    Args:
        settings: Of this process.
        line: Where the loop is, such as "line 31".
    """
    place = Place(
        Path(settings.records),
        record_id(settings.run, CUSTOM_LOOP),
        "memfit run",
        settings.script,
        CUSTOM_LOOP,
    )
    record = new_record(place, settings.memory, model="custom loop", allow=settings.allow)
    against = "" if settings.memory is None else f" against {record.memory}"
    StreamTeller(quiet=settings.quiet).tell(
        [
            Line(f"{settings.script}, {line}: trains in a custom loop, not with fit()"),
            *_explain(),
            Line(f"it measures the loop's memory{against}, and explains an out-of-memory error"),
            Line(f"for a breakdown of its peak, and what would help: memfit estimate {settings.script}"),
        ]
    )
    recorder = Recorder(record, place.folder)
    recorder.start()
    return recorder


def _explain() -> list[Line]:
    """Says what memfit does with the loop, which knows memfit if it has imported `memfit.gradients`."""
    if "memfit.training.gradients" in sys.modules:
        return [
            Line("its functions under @memfit.gradients get plans and the guard; there are no checkpoints")
        ]
    return [
        Line("memfit cannot change such a loop: no plan, no checkpoints, no limit", True),
        Line("to get a plan and the guard, put @memfit.gradients(variables) on the loss function"),
    ]
