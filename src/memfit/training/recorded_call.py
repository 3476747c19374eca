"""One call of `fit` and its record: opened when the plan is there, closed however the call ends."""

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import keras

from memfit.errors import MemfitError
from memfit.planning.does_not_fit import DoesNotFit
from memfit.planning.fidelity import Fidelity
from memfit.planning.plan import Plan
from memfit.training.guard.events import Journal, OutOfMemory
from memfit.training.monitoring.monitoring import list_callbacks
from memfit.training.records.opening import Place, open_record
from memfit.training.records.record import FAILED, FINISHED, INTERRUPTED, OUT_OF_MEMORY, REFUSED
from memfit.training.records.recorder import Recorder
from memfit.training.running import current_runner
from memfit.training.summary import Line, summarise

_LOG = logging.getLogger("memfit")


class RecordedCall:
    """A call of `fit`; its record is written as it goes, and a failure to do so is not the training's.

    Args:
        arguments: Keras's arguments.
        memory: What was asked for.
        allowed: The farthest that a plan may go.
        journal: Where the guard notes what happens.
        planned_before: Whether the plan is the user's, made before.
        told: Whether it is told and recorded: of several processes that train together, one does.
    """

    def __init__(
        self,
        model: keras.Model,
        arguments: Mapping[str, Any],
        memory: int | str | None,
        allowed: Fidelity,
        journal: Journal,
        *,
        planned_before: bool,
        told: bool,
    ) -> None:
        self._told = told
        self._planned_before = planned_before
        self._model, self._arguments, self._memory, self._allowed = model, arguments, memory, allowed
        self._journal = journal
        self._called = time.monotonic()
        self._recorder: Recorder | None = None

    def __enter__(self) -> Self:
        return self

    def begin(self, plan: Plan | None) -> None:
        """Tells what is planned and opens the record: the plan is there, or it is known that there is none."""
        if not self._told:
            return
        seconds = 0.0 if plan is None or self._planned_before else time.monotonic() - self._called
        place = current_runner().place()
        self._tell(plan, 0 if place is None else place.call, seconds)
        if place is not None:
            self._open(place, plan, seconds)

    def _tell(self, plan: Plan | None, call: int, seconds: float) -> None:
        teller = current_runner().teller(self._arguments)
        if plan is not None:
            lines = summarise(
                plan,
                self._model.name,
                self._arguments,
                call=call,
                asked=self._planned_before or self._memory is not None,
                seconds=seconds,
            )
            teller.tell(lines)
        elif self._memory is None and self._journal.events:  # otherwise it was a warning
            teller.tell([Line(f"fit(): {self._journal.events[-1]}")])

    def _open(self, place: Place, plan: Plan | None, seconds: float) -> None:
        try:
            record = open_record(
                place,
                self._model,
                self._arguments,
                plan,
                memory=self._memory,
                allow=str(self._allowed),
                planning_seconds=seconds or None,
            )
        except Exception as error:  # a record is not worth a training
            _LOG.info("this training is not recorded: %s", error)
            return
        self._recorder = Recorder(record, place.folder, self._journal.events)
        self._recorder.start()

    @contextlib.contextmanager
    def listening(self, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Gives the arguments with one callback more, which counts epochs and batches."""
        if self._recorder is None:
            yield arguments
            return
        callbacks = arguments["callbacks"]
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks.callbacks.append(self._recorder)
            try:
                yield arguments
            finally:
                callbacks.callbacks.remove(self._recorder)
            return
        yield {**arguments, "callbacks": [*list_callbacks(callbacks), self._recorder]}

    @property
    def file(self) -> Path | None:
        """The record's file; None where none is kept."""
        return None if self._recorder is None else self._recorder.path

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, DoesNotFit) and self._recorder is None:
            place = current_runner().place()
            if place is not None:
                self._open(place, error.closest, time.monotonic() - self._called)
        if self._recorder is not None:
            self._recorder.end(*_judge(error))


def _judge(error: BaseException | None) -> tuple[str, str]:
    """Returns the outcome, and a sentence; of an error that is not memfit's only the type: it may tell secrets."""
    if error is None:
        return FINISHED, ""
    if isinstance(error, OutOfMemory):
        return OUT_OF_MEMORY, str(error)
    if isinstance(error, MemfitError):
        return REFUSED, str(error)
    if not isinstance(error, Exception):
        return INTERRUPTED, f"Ended by {type(error).__name__}."
    return FAILED, f"The script failed with {type(error).__name__}."
