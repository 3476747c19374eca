"""What a monitor saw: memory by epoch and phase, and what leaks."""

from dataclasses import dataclass
from typing import Any

from memfit.showing import Shown
from memfit.sizes import Size, to_plain
from memfit.tables import table
from memfit.training.monitoring.growth import Growth


@dataclass(frozen=True)
class PhaseMemory:
    """The memory of one phase.

    Attributes:
        epoch: Counted from 0 as in Keras.
        phase: "train" or "validate" in `fit`; "evaluate"; "predict".
        device: Bytes of live tensors at its end; None, as the peak, where the allocator does not count.
        device_peak: The most during the phase, as TensorFlow's allocator counts it.
        host: Resident memory of the process at its end.
        host_peak: The most that was seen, ten times a second.
    """

    epoch: int
    phase: str
    device: Size | None
    device_peak: Size | None
    host: Size
    host_peak: Size


@dataclass(frozen=True, repr=False)
class MemoryRecord(Shown):
    """What `MemoryMonitor` saw.

    Attributes:
        device: The device that trained, such as "GPU:0".
        phases: The phases in order.
        growths: What leaks: memory that grows steadily over epochs.
    """

    device: str
    phases: tuple[PhaseMemory, ...] = ()
    growths: tuple[Growth, ...] = ()

    @property
    def device_peak(self) -> Size | None:
        """The highest peak of all phases."""
        return max(
            (phase.device_peak for phase in self.phases if phase.device_peak is not None), default=None
        )

    @property
    def host_peak(self) -> Size | None:
        """The most of the host's memory that was seen in any phase."""
        return max((phase.host_peak for phase in self.phases), default=None)

    @property
    def head(self) -> list[str]:
        """The head of the table of its phases."""
        return ["epoch", "phase", self.device, "peak", "host", "peak"]

    @property
    def rows(self) -> list[list[object]]:
        """The rows of that table."""
        return [
            [
                phase.epoch + 1,
                phase.phase,
                *("-" if size is None else size for size in (phase.device, phase.device_peak)),
                phase.host,
                phase.host_peak,
            ]
            for phase in self.phases
        ]

    def __repr__(self) -> str:
        phases = table(self.rows, head=self.head, right=[0, 2, 3, 4, 5])
        return "\n".join([phases, *map(str, self.growths)])

    def to_json(self) -> dict[str, Any]:
        """Returns the record as plain data, sizes in bytes."""
        return to_plain(self)
