"""The record of a training: the plan, the predicted and the measured peak, and what happened."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from memfit.budgets.size import Size
from memfit.tables import table


@dataclass(frozen=True, repr=False)
class Run:
    """What a call of `fit` did with the memory; `History.memory`.

    Attributes:
        plan: The plan that was followed; None where no lever was asked for.
        predicted: The peak that the plan predicted, or None.
        measured: The peak that TensorFlow's allocator measured on the device, or None where it does not count
            (a CPU outside of an arena).
        events: What happened on the way, in order, as sentences.
    """

    plan: Any = None
    predicted: Size | None = None
    measured: Size | None = None
    events: tuple[str, ...] = ()

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
            "events": list(self.events),
        }


class Peak:
    """The highest memory use of a device during a `with` block; `size` is None where it is not counted."""

    size: Size | None = None


@contextmanager
def measured_peak() -> Iterator[Peak]:
    """Measures the peak of the device that trains: the first GPU, or the arena."""
    import tensorflow as tf

    device = "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"
    peak = Peak()
    tf.config.experimental.reset_memory_stats(device)
    try:
        yield peak
    finally:
        # An allocator that does not count (the CPU's, outside of an arena) says 0.
        peak.size = Size(int(tf.config.experimental.get_memory_info(device)["peak"])) or None
