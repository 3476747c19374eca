"""What trains on this machine right now: memfit's runs by their records, others' processes by the GPU driver."""

import time
from dataclasses import dataclass
from typing import Any

import psutil

from memfit.budgets.budget import Budget, budget
from memfit.budgets.memory import Memory, host_memory
from memfit.budgets.nvml import GpuProcess, gpu_processes
from memfit.sizes import Size, plain, to_plain
from memfit.training.records.files import read_records
from memfit.training.records.record import RUNNING, RunRecord


@dataclass(frozen=True)
class Training:
    """A run of memfit's that goes on.

    Attributes:
        record: Its record as it was last written.
        age: Seconds since then.
        host: Resident memory of its process now.
        limit: What its process may use of the host: its cgroup's share, or all.
        gpu: What the driver says that it holds; None on a machine without a GPU.
    """

    record: RunRecord
    age: float
    host: Size
    limit: Memory
    gpu: Size | None

    @property
    def device_now(self) -> Size | None:
        """The peak on the device in the last interval that was measured."""
        last = self.record.series.device[-1:]
        return Size(last[0]) if last and last[0] is not None else None

    @property
    def leak(self) -> str:
        """What was said of memory that grows steadily, or nothing."""
        return "".join(mark.says for mark in self.record.of_kind("leak")[-1:])

    def to_json(self) -> dict[str, Any]:
        """Returns what a live view shows as plain data, sizes in bytes."""
        record = self.record
        shown: dict[str, Any] = {
            "run": record.id,
            "pid": record.process.pid,
            "model": record.model,
            "script": record.script,
            "seconds": round(self.age + record.seconds, 1),
            "age": round(self.age, 1),
            "device": {
                "name": record.device,
                "now": self.device_now,
                "peak": record.device_peak,
                "predicted": record.predicted,
                "budget": record.memory,
                "driver": self.gpu,
            },
            "host": {
                "now": self.host,
                "peak": record.host_peak,
                "predicted": record.host_predicted,
                "limit": self.limit,
            },
            "epoch": record.epoch,
            "epochs": record.facts.get("epochs"),
            "batch": record.batch,
            "batches": record.facts.get("steps_per_epoch"),
            "batch_size": record.batch_size,
            "steps": record.steps,
            "step_seconds": record.step_seconds,
            "shortages": len(record.of_kind("out of memory")),
            "restarts": record.restarts,
            "leak": self.leak or None,
        }
        return plain(shown)


@dataclass(frozen=True)
class OtherProcess:
    """A process on a GPU that is no run of memfit's; `name` is its program, never its arguments."""

    process: GpuProcess
    name: str

    def to_json(self) -> dict[str, Any]:
        """Returns it as plain data, sizes in bytes."""
        return plain(
            {"pid": self.process.pid, "name": self.name, "gpu": self.process.gpu, "used": self.process.used}
        )


@dataclass(frozen=True)
class Snapshot:
    """What trains on this machine at a moment.

    Attributes:
        taken: When, in seconds since 1970.
        budget: Devices and host.
        trainings: Runs of memfit's, the newest first.
        others: Everything else on the GPUs, the largest first.
    """

    taken: float
    budget: Budget
    trainings: tuple[Training, ...]
    others: tuple[OtherProcess, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns everything as plain data, sizes in bytes."""
        return to_plain(self)


def look() -> Snapshot:
    """Looks at this machine."""
    now, on_gpus = time.time(), gpu_processes()
    running = [
        record for _, record in read_records() if record.outcome == RUNNING and record.process.is_alive
    ]
    trainings = [training for record in running if (training := _attach(record, on_gpus, now)) is not None]
    known = {training.record.process.pid for training in trainings}
    others = [OtherProcess(process, _name(process.pid)) for process in on_gpus if process.pid not in known]
    others.sort(key=lambda each: -(each.process.used or 0))
    return Snapshot(now, budget(), tuple(trainings), tuple(others))


def _attach(record: RunRecord, on_gpus: list[GpuProcess], now: float) -> Training | None:
    pid = record.process.pid
    used = [process.used for process in on_gpus if process.pid == pid and process.used is not None]
    try:
        host = Size(psutil.Process(pid).memory_info().rss)
        limit = host_memory(process=pid)
    except psutil.Error:  # it ended meanwhile
        return None
    return Training(record, max(0.0, now - record.updated), host, limit, Size(sum(used)) if used else None)


def _name(pid: int) -> str:
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return "not known"
