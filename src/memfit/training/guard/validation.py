"""Validation under guard: a batch that does not fit is evaluated in smaller parts; training is not touched."""

import gc
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from memfit.planning.levers.micro_batches import list_sizes
from memfit.steps.installing import is_custom
from memfit.steps.rollback import Rollback
from memfit.steps.tracing import CompiledStep
from memfit.steps.train_step import build_test_body
from memfit.training.guard.events import Journal, OutOfMemory, Shortage, check_survivable, shortage
from memfit.training.guard.reading import Reader
from memfit.training.guard.room import Room

_HALF = 0.5


class GuardedValidation:
    """Stands in for a model's `test_function`.

    Args:
        model: A compiled model.
        size: Samples to evaluate at once, at first; None for whole batches.
        reader: Where batches come from.
        journal: Where events go.
        steps: Steps that were compiled before, by their size.
    """

    def __init__(
        self,
        model: keras.Model,
        size: int | None,
        reader: Reader,
        journal: Journal,
        steps: dict[int | None, CompiledStep],
    ) -> None:
        self._model, self._size, self._reader, self._journal = model, size, reader, journal
        self._steps = steps
        self._rollback = Rollback(model)
        self._room = Room()
        self._batch = 0

    def __call__(self, iterator: Any) -> Any:
        """Evaluates as many batches as Keras wants to execute at once; returns the last one's logs."""
        return self._reader.each(iterator, self._model.steps_per_execution, self._evaluate)

    def _evaluate(self, data: Any) -> Any:
        self._batch += 1
        self._rollback.note()
        again = False
        while True:
            try:
                step = partial(self._step(), data, self._reader.spec)
                logs = self._room.measure(self._size, step)
                self._rollback.look_again()  # the first step has made the metrics' variables
                return logs
            except (tf.errors.OpError, RuntimeError) as error:
                lack = shortage(error)
                if lack is None:
                    raise
            check_survivable(self._model, lack)
            self._rollback.undo()
            gc.collect()
            self._tighten(data, lack, again)
            again = True
            self._rollback.note()

    def _step(self) -> CompiledStep:
        if self._size not in self._steps:
            self._steps[self._size] = CompiledStep(self._model, build_test_body(self._model, self._size))
        return self._steps[self._size]

    def _tighten(self, data: Any, lack: Shortage, again: bool) -> None:
        smaller = None if is_custom(self._model, "test_step") else half(data, self._size)
        if not again and (smaller is None or self._room.there_is(self._size)):
            self._note(lack, "Its metrics were rolled back, and it is evaluated again")
        elif smaller is not None:
            self._size = smaller
            self._note(lack, f"Its metrics were rolled back, and it is evaluated again in parts of {smaller}")
        else:
            self._note(lack, "Its metrics were rolled back; nothing smaller is left")
            raise OutOfMemory(
                f"There is no memory to evaluate even {self._size or 'one batch'} at a time: {lack}. "
                "The model is as it was. Free memory that others hold, or give smaller validation batches."
            )

    def _note(self, lack: Shortage, done: str) -> None:
        self._journal.ran_out("validation", self._batch, lack, done)


def half(data: Any, size: int | None) -> int | None:
    """The next smaller part of a batch to compute at once; None where there is none."""
    samples = int(next(leaf for leaf in keras.tree.flatten(data) if leaf is not None).shape[0])
    now = min(size or samples, samples)
    smaller = [other for other in list_sizes(samples) if other < now]
    return next((other for other in smaller if other <= _HALF * now), smaller[-1] if smaller else None)
