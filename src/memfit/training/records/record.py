"""The record of one training: a `RunRecord`, and its JSON."""

import os
from dataclasses import dataclass, field
from typing import Any

import psutil

from memfit.errors import InvalidInput
from memfit.estimation.step_timeline import StepTimeline
from memfit.planning.plan import Plan
from memfit.showing import Shown
from memfit.sizes import Size, to_plain
from memfit.tables import table
from memfit.training.records.surroundings import machine_id

FORMAT = 1  # a file of a later format is not read

# How a training ended. "running" and "died" are told apart by whether its process is alive.
RUNNING, FINISHED, REFUSED, OUT_OF_MEMORY, INTERRUPTED, FAILED, DIED = (
    "running",
    "finished",
    "refused",  # no allowed plan fits, or an argument was invalid
    "out of memory",
    "interrupted",  # asked to end, with a checkpoint under `memfit run`
    "failed",  # by an error of the script
    "died",  # its process was killed or crashed
)


@dataclass(frozen=True)
class Mark:
    """Something that happened at a moment of a run.

    Attributes:
        seconds: Since the run began, on the clock on the wall: the time between two processes of a run counts.
        kind: "epoch", "validation", "checkpoint", "out of memory", "leak", "death", "restart" or "note".
        says: The whole of it, as a sentence; empty for epochs, validations and checkpoints.
        epoch: The epoch it happened in, counted from 0; None where there was none.
        batch: The batches of that epoch that were trained by then; None where it is not known.
        lasted: Seconds that an epoch or a validation took; None for moments.
    """

    seconds: float
    kind: str
    says: str = ""
    epoch: int | None = None
    batch: int | None = None
    lasted: float | None = None


@dataclass(frozen=True)
class Series:
    """Measured memory over a run: one row for each interval, which is longer in a longer run.

    Attributes:
        seconds: When each interval ended, since the run began.
        device: The peak on the device by then, in the epoch's training or in its validation, as TensorFlow's
            allocator counts; None where it does not.
        host: The most resident memory of the process that was seen in each interval.
        batches: Batches trained by then, over all epochs.
    """

    seconds: tuple[float, ...] = ()
    device: tuple[int | None, ...] = ()
    host: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.seconds)


@dataclass(frozen=True)
class Process:
    """The process that trains, or trained last: its number, when it started, and on which machine (a hash)."""

    pid: int
    started: float
    machine: str

    @property
    def is_alive(self) -> bool:
        """Whether it still runs; False where it ran on another machine, of which nothing can be known here."""
        if self.machine != machine_id():
            return False
        try:
            return abs(psutil.Process(self.pid).create_time() - self.started) < 2
        except psutil.Error:
            return False


@dataclass(frozen=True, kw_only=True, repr=False)
class RunRecord(Shown):
    """What one call of `fit` (or one custom loop under `memfit run`) was, and what became of it.

    Sizes are bytes, times seconds; times of a day are seconds since 1970. Everything that is optional is None or
    empty where it is not known: a training without a plan, a device whose allocator does not count.

    Attributes:
        id: Six letters that name it.
        begun: When it began.
        updated: When the file was last written.
        ended: When it ended; None while it runs, and where its process died.
        outcome: One of the constants of this module; read `state`, which knows whether the process is alive.
        says: How it ended, as a sentence.
        process: The process that trains.
        command: "memfit.fit" or "memfit run".
        script: The script's file name, without its folder; "" where it is not known.
        call: Which call of fit() of the script it is, counted from 0; -1 for a custom loop.
        restarts: How often `memfit run` started the script again.
        versions: Of Python, memfit, Keras, TensorFlow and NumPy.
        environment: The environment variables of an allow-list that are set.
        machine: Facts: system, processors, devices.
        model: The model's name.
        facts: Of the model and the call, by allow-list: class, layers, parameters, optimizer, epochs, steps, ...
        batch_size: Samples in one update.
        memory: The budget of the training on its device.
        memory_source: Where that figure comes from.
        host_memory: What the host had in all.
        host_parts: What the process was predicted to have on the host, by what it is for; empty where it was not
            predicted.
        allow: The farthest that a plan may go.
        plan: The plan that was followed, with every lever and its reason; of a refused training the one that came
            closest; None where there was none.
        device: The device that was measured, such as "GPU:0".
        device_peak: The measured peak on it; None where its allocator does not count.
        host_peak: The most resident memory that was seen.
        first_step_seconds: From the beginning to the end of the first batch, tracing included.
        step_seconds: The mean of the batches after the first of each epoch.
        planning_seconds: How long the plan took to make; None where there was none.
        steps: Batches that were trained, over all epochs.
        epoch: The epoch that was trained last, counted from 0; None before the first.
        batch: The batches of that epoch that were trained.
        series: Measured memory over time.
        marks: What happened, in order of time.
        findings: What `memfit.lint` said of the pipelines, as plain data; None where it was not asked.
    """

    id: str
    begun: float
    updated: float
    process: Process
    ended: float | None = None
    outcome: str = RUNNING
    says: str = ""
    command: str = "memfit.fit"
    script: str = ""
    call: int = 0
    restarts: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    batch_size: int | None = None
    memory: Size | None = None
    memory_source: str = ""
    host_memory: Size | None = None
    host_parts: dict[str, int] = field(default_factory=dict)
    allow: str = ""
    plan: Plan | None = None
    device: str = ""
    device_peak: Size | None = None
    host_peak: Size | None = None
    first_step_seconds: float | None = None
    step_seconds: float | None = None
    planning_seconds: float | None = None
    steps: int = 0
    epoch: int | None = None
    batch: int = 0
    series: Series = field(default_factory=Series)
    marks: tuple[Mark, ...] = ()
    findings: list[dict[str, Any]] | None = None

    @property
    def state(self) -> str:
        """The outcome; "died" for a run that never said how it ended and whose process is gone."""
        return DIED if self.outcome == RUNNING and not self.process.is_alive else self.outcome

    @property
    def seconds(self) -> float:
        """How long it took, or has taken so far."""
        return max(0.0, (self.ended or self.updated) - self.begun)

    @property
    def predicted(self) -> Size | None:
        """The predicted peak with the plan; None without a plan."""
        return None if self.plan is None else self.plan.predicted

    @property
    def host_predicted(self) -> Size | None:
        """The predicted peak of the process on the host; None where it was not predicted."""
        return Size(sum(self.host_parts.values())) if self.host_parts else None

    @property
    def timeline(self) -> StepTimeline | None:
        """The predicted memory of one step as planned; None where no estimate was made."""
        return None if self.plan is None else self.plan.timeline

    def of_kind(self, *kinds: str) -> tuple[Mark, ...]:
        """Returns the marks of some kinds."""
        return tuple(mark for mark in self.marks if mark.kind in kinds)

    def __repr__(self) -> str:
        def told(size: Size | None, word: str) -> str:
            return "not known" if size is None else f"{size} ({word})"

        rows: list[list[object]] = [
            ["run", f"{self.id}: {self.model}, batch {self.batch_size}"],
            ["ended", self.says or self.state],
            ["peak", told(self.predicted, "predicted")],
            ["", told(self.device_peak, "measured")],
            ["time", f"{self.seconds:.0f} s, steps: {self.steps}, restarts: {self.restarts}"],
        ]
        rows += [["event", mark.says] for mark in self.of_kind("out of memory", "death", "note")]
        return table(rows)

    def to_json(self) -> dict[str, Any]:
        """Returns the record as plain data that `from_json` reads."""
        marks = [
            {name: value for name, value in vars(mark).items() if value is not None} for mark in self.marks
        ]
        return {"format": FORMAT, **to_plain(self), "marks": marks}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "RunRecord":
        """Reads what `to_json` returned.

        Raises:
            InvalidInput: If something is missing, of another kind, or of a later format.
        """
        try:
            rest = dict(data)
            if rest.pop("format") != FORMAT:
                raise InvalidInput(
                    "The record was written by another version of memfit", received=data["format"]
                )
            sizes = ("memory", "host_memory", "device_peak", "host_peak")
            rest |= {name: Size(rest[name]) for name in sizes if rest[name] is not None}
            rest["process"] = Process(**rest["process"])
            rest["plan"] = None if rest["plan"] is None else Plan.from_json(rest["plan"])
            rest["series"] = Series(**{name: tuple(values) for name, values in rest["series"].items()})
            rest["marks"] = tuple(Mark(**mark) for mark in rest["marks"])
            return cls(**rest)
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"That is not the record of a run ({error})") from error


def this_process() -> Process:
    """Describes the process that runs this."""
    return Process(os.getpid(), psutil.Process().create_time(), machine_id())
