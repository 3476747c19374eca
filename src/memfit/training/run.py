"""The record of a training: the plan, the predicted and the measured peak, and what happened."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memfit.planning.plan import Plan
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
        measured: The peak that TensorFlow's allocator measured on the device, or None where it does not count
            (a CPU outside of an arena).
        events: What happened on the way, in order; each prints as a sentence.
        monitored: The record of a `MemoryMonitor` among the callbacks, or None.
        record: The file of the run's record, from which reports are made; None where records are turned off.
    """

    plan: Plan | None = None
    measured: Size | None = None
    events: tuple[Event, ...] = ()
    monitored: MemoryRecord | None = None
    record: Path | None = None

    @property
    def predicted(self) -> Size | None:
        """The peak that the plan predicted, or None."""
        return None if self.plan is None else self.plan.predicted

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


def judge(plan: Plan, measured: int) -> str | None:
    """Says that a plan turned out too tight or too loose, and what to do about it; None where it did not.

    What was measured corrects what was predicted for stock Keras: both are off by the same part.

    Args:
        measured: The peak on the device, in bytes.
    """
    if plan.is_bound or not (plan.predicted and measured):
        return None
    off = measured / plan.predicted
    told = f"{Size(measured)} measured, {plan.predicted} predicted ({off - 1:+.0%})"
    if measured > plan.memory:
        less = Size(int(plan.memory / off))
        return f"The plan is too tight: {told}. Make it with memory={str(less).replace(' ', '')!r} instead."
    margin = plan.margin / plan.predicted
    stock = Size(int(off * plan.stock))
    if not plan.recipe.is_stock and stock * (1 + margin) <= plan.memory:
        more = Size(int(plan.memory / off))
        return (
            f"The plan is too loose: {told}. Stock Keras would take about {stock} of {plan.memory}: "
            f"make it with memory={str(more).replace(' ', '')!r}."
        )
    return None
