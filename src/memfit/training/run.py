"""The record of a training: the plan, the predicted and the measured peak, and what happened."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memfit.planning.plan import Plan
from memfit.showing import Shown
from memfit.sizes import Size, plain
from memfit.tables import table
from memfit.training.guard.events import Event
from memfit.training.monitoring.record import MemoryRecord

_MUCH_LESS = 2 / 3  # of what was predicted: a prediction that is a little high is no news


@dataclass(frozen=True, repr=False)
class Run(Shown):
    """What a call of `fit` did with the memory; `History.memory`.

    Attributes:
        plan: The plan that was followed; None where no lever was asked for.
        measured: The peak that TensorFlow's allocator measured on the device, or None where it does not count
            (a CPU outside of an arena and without oneDNN).
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
        told = {
            "plan": self.plan,
            "predicted": self.predicted,
            "measured": self.measured,
            "events": self.events,
            "monitored": self.monitored,
            "record": None if self.record is None else str(self.record),
        }
        return plain(told)


def judge(plan: Plan, measured: int, *, ran_out: bool = False) -> str | None:
    """Says that a training took more than it was planned for, or much less; None where it did neither.

    Only what was seen is told. What another plan would take does not follow from how far off this one's was.

    Args:
        measured: The peak on the device, in bytes.
        ran_out: Whether memory ran out. That step took all there was, and later ones are not those of the plan.
    """
    if ran_out or not (plan.predicted and measured):
        return None
    if measured > plan.memory:
        known = "at most" if plan.is_bound else "predicted"
        return (
            f"The peak was {Size(measured)}, {Size(measured - plan.memory)} over the {plan.memory} it was planned "
            f"for ({plan.predicted} {known}). A smaller batch takes less."
        )
    if plan.is_bound or plan.recipe.is_stock or measured > _MUCH_LESS * plan.predicted:
        return None
    return (
        f"Less memory was needed than planned: the peak was {Size(measured)}, {plan.predicted} predicted. "
        "Results are not affected."
    )
