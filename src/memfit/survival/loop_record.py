"""What `memfit run` does for a script that trains in a custom loop: it says so, and measures it."""

import sys
import time
from pathlib import Path

from memfit.budgets.budget import budget
from memfit.budgets.peaks import device_name
from memfit.compat.versions import read_versions
from memfit.sizes import Size
from memfit.survival.settings import CUSTOM_LOOP, ProcessSettings, record_id
from memfit.survival.stream_teller import StreamTeller
from memfit.training.records.record import RunRecord, this_process
from memfit.training.records.recorder import Recorder
from memfit.training.records.surroundings import environment_variables, machine_facts
from memfit.training.summary import Line


def record_loop(settings: ProcessSettings, line: str) -> Recorder:
    """Says that a script's loop is measured and not changed, and begins to measure.

    Args:
        settings: Of this process.
        line: Where the loop is, such as "line 31".
    """
    there = budget()
    memory = None if settings.memory is None else Size(settings.memory, of=there.device.total)
    against = "" if memory is None else f" against {memory}"
    StreamTeller(quiet=settings.quiet).tell(
        [
            Line(f"{settings.script}, {line}: trains in a custom loop, not with fit()"),
            *_explain(),
            Line(f"it measures the loop's memory{against}, and explains an out-of-memory error"),
            Line(f"for a breakdown of its peak, and what would help: memfit estimate {settings.script}"),
        ]
    )
    now = time.time()
    record = RunRecord(
        id=record_id(settings.run, CUSTOM_LOOP),
        begun=now,
        updated=now,
        process=this_process(),
        command="memfit run",
        script=settings.script,
        call=CUSTOM_LOOP,
        versions=read_versions(),
        environment=environment_variables(),
        machine=machine_facts(),
        model="custom loop",
        memory=there.device.free if memory is None else memory,
        memory_source="asked for" if memory is not None else f"free on {there.device.name}",
        host_memory=there.host.total,
        allow=settings.allow,
        device=device_name(),
    )
    recorder = Recorder(record, Path(settings.records))
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
