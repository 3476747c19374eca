"""What the guard saw and did: one event for every time that memory ran out, and the error where nothing helped."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from memfit.budgets.budget import budget
from memfit.budgets.peaks import device_name
from memfit.errors import MemfitError
from memfit.oom.reading import read_error
from memfit.sizes import Size, to_plain

log = logging.getLogger("memfit")


@dataclass(frozen=True)
class Event:
    """Something that happened in a run; prints as a sentence.

    Attributes:
        says: The whole of it, as a sentence.
        phase: "training", "validation", "prediction" or "data" where memory ran out there; otherwise empty.
        batch: The batch of that phase, counted from 1; None where it was none.
        asked: What was asked for when memory ran out, or None.
        free: What was free once the step had been rolled back, or None where it is not known.
        done: What was done about it, or empty.
    """

    says: str
    phase: str = ""
    batch: int | None = None
    asked: Size | None = None
    free: Size | None = None
    done: str = ""

    def __str__(self) -> str:
        return self.says

    def to_json(self) -> dict[str, Any]:
        """Returns the event as plain data, sizes in bytes."""
        return to_plain(self)


class OutOfMemory(MemfitError, RuntimeError):
    """Memory ran out, and training cannot continue in this process.

    Attributes:
        intact: Whether the model is as it was before the batch; otherwise some weights were updated and
            only a checkpoint helps.
    """

    def __init__(self, message: str, intact: bool = True) -> None:
        super().__init__(message)
        self.intact = intact

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.intact)


@dataclass(frozen=True)
class Shortage:
    """Memory that ran out, without the exception, whose traceback would hold the step's tensors.

    Attributes:
        asked: The bytes of the allocation that failed, or None.
        by: What asked for it, such as "layer dense, MatMul (backward)".
    """

    asked: Size | None
    by: str

    def __str__(self) -> str:
        return f"failed to allocate {self.asked or 'memory'}{f' for {self.by}' if self.by else ''}"


def shortage(error: BaseException) -> Shortage | None:
    """Says what an error tells of memory that ran out; None where it tells of something else."""
    if isinstance(error, MemfitError):
        return None
    told = read_error(error)
    # A GPU's libraries report a failed allocation as an internal error, and Keras that of an eager layer as a
    # RuntimeError: there only the text can tell.
    if not isinstance(error, tf.errors.ResourceExhaustedError) and told.ran_out not in ("device", "block"):
        return None
    asked = told.asked
    by = "" if asked is None else _name(asked.layer, asked.op, asked.phase)
    return Shortage(told.requested or (None if asked is None else asked.bytes), by)


def attempt(run: Callable[[], Any]) -> tuple[Any, Shortage | None]:
    """Runs a step; returns its result and None, or None and what it ran out of.

    The exception is gone by then, and with its traceback what the step had allocated.
    """
    try:
        return run(), None
    except (tf.errors.OpError, RuntimeError) as error:
        lack = shortage(error)
        if lack is None:
            raise
        return None, lack


def _name(layer: str, op: str, phase: str) -> str:
    """Names what asked for memory, such as "layer `dense`, MatMul (backward pass)"."""
    what = ", ".join(filter(None, (f"layer `{layer}`" if layer else "", op)))
    return f"{what} ({phase} pass)" if phase in ("forward", "backward") else what


class Journal:
    """The events of a run, shortages written to the log as they happen."""

    def __init__(self, events: list[Event] | None = None) -> None:
        self.events = [] if events is None else events

    def note(self, says: str, *, warn: bool = False, bug: Exception | None = None) -> None:
        """Notes something that is no shortage; with `warn` it is a warning, too, with the traceback of a bug."""
        self.events.append(Event(says))
        if warn:
            log.warning("%s", says, exc_info=bug)

    def ran_out(self, phase: str, batch: int, lack: Shortage, done: str) -> None:
        """Notes that memory ran out, and what is done about it."""
        left = free()
        there = "" if left is None else f"; {left} free afterwards"
        says = f"Out of memory in {phase}, batch {batch}: {lack}{there}. {done}."
        self.events.append(Event(says, phase, batch, lack.asked, left, done))
        log.warning("%s", says)


def check_survivable(model: keras.Model, lack: Shortage) -> None:
    """Ends where going on would end the process.

    Seen on the CPU (TensorFlow 2.21): a program of XLA that runs out of memory leaves variables whose buffers
    are freed twice; the next step, or the end of the process, then ends with SIGSEGV or SIGABRT. Not looked at on a
    GPU.

    Raises:
        OutOfMemory: If the model's steps are compiled with XLA for the CPU.
    """
    if model.jit_compile and not model.run_eagerly and device_name().startswith("CPU"):
        raise OutOfMemory(
            f"A step that XLA had compiled ran out of memory: {lack}. On the CPU TensorFlow does not survive this: "
            "the weights cannot be trusted any more. Continue from a checkpoint (`memfit run` does), compile with "
            "jit_compile=False, or plan for less memory.",
            intact=False,
        )


def free() -> Size | None:
    """What is free on the device that trains; None where that is not known."""
    devices = budget().devices
    return devices[0].free if devices else None
