"""The record of a training: the plan, the predicted and the measured peak, and what happened."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memfit.showing import Shown
from memfit.sizes import Size
from memfit.tables import table
from memfit.training.guard.events import Event
from memfit.training.monitoring.record import MemoryRecord


@dataclass(frozen=True, repr=False)
class Run(Shown):
    """What a call of `fit` did with the memory; `History.memory`.

    Attributes:
        plan: The plan that was followed; None where no lever was asked for.
        predicted: The peak that the plan predicted, or None.
        measured: The peak that TensorFlow's allocator measured on the device, or None where it does not count
            (a CPU outside of an arena).
        events: What happened on the way, in order; each prints as a sentence.
        monitored: The record of a `MemoryMonitor` among the callbacks, or None.
        record: The file of the run's record, from which reports are made; None where records are turned off.
    """

    plan: Any = None
    predicted: Size | None = None
    measured: Size | None = None
    events: tuple[Event, ...] = ()
    monitored: MemoryRecord | None = None
    record: Path | None = None

    def __repr__(self) -> str:
        rows: list[list[object]] = [
            ["predicted peak", "not predicted" if self.predicted is None else self.predicted],
            ["measured peak", "not measured" if self.measured is None else self.measured],
        ]
        rows += [["event", event] for event in self.events]
        return "\n".join(filter(None, ["" if self.plan is None else repr(self.plan), table(rows)]))

    def to_json(self) -> dict[str, Any]:
        """Returns the run as plain data, sizes in bytes."""
        return {
            "plan": None if self.plan is None else self.plan.to_json(),
            "predicted": None if self.predicted is None else int(self.predicted),
            "measured": None if self.measured is None else int(self.measured),
            "events": [event.to_json() for event in self.events],
            "monitored": None if self.monitored is None else self.monitored.to_json(),
            "record": None if self.record is None else str(self.record),
        }
