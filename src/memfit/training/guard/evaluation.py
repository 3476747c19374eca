"""Evaluation and prediction under guard: a batch that does not fit is computed in smaller parts."""

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from memfit.data.shapes import count_samples
from memfit.planning.levers.micro_batches import list_sizes
from memfit.steps.installing import is_custom
from memfit.steps.micro_batches.samples import slice_samples
from memfit.steps.rollback import ModelRollback
from memfit.steps.share import split_evenly
from memfit.steps.tracing import CompiledStep
from memfit.steps.train_step import build_test_body
from memfit.training.feeding import Feed
from memfit.training.guard.ending import EndOfData
from memfit.training.guard.events import Journal, OutOfMemory, Shortage, attempt, check_survivable
from memfit.training.guard.reading import Reader
from memfit.training.guard.room import Room
from memfit.training.peers import Peers

_HALF = 0.5


class _Guarded:
    """Runs batches, each again in smaller parts where it ran out of memory.

    Args:
        size: Samples to compute at once, at first; None for whole batches.
        divisible: Whether a batch can be computed in parts.
    """

    def __init__(
        self, model: keras.Model, size: int | None, phase: str, journal: Journal, divisible: bool
    ) -> None:
        self._model, self._size, self._phase, self._journal = model, size, phase, journal
        self._divisible = divisible
        self._rollback = ModelRollback(model)
        self._room = Room()
        self._batch = 0

    def _run(self, batch: Any, compute: Callable[[], Any]) -> Any:
        self._batch += 1
        tries = 0
        while True:
            self._rollback.note()
            result, lack = attempt(lambda: self._room.measure(self._size, compute))
            if lack is None:
                self._rollback.look_again()  # the first step has made the metrics' variables
                return result
            check_survivable(self._model, lack)
            self._rollback.undo()
            gc.collect()
            self._tighten(count_samples(batch), lack, tries)
            tries += 1

    def _tighten(self, samples: int, lack: Shortage, tries: int) -> None:
        smaller = _halve(samples, self._size) if self._divisible else None
        note = partial(self._journal.ran_out, self._phase, self._batch, lack)
        if not tries and (smaller is None or self._room.there_is(self._size)):
            note("Rolled back, and computed again")
        elif smaller is not None:
            self._size = smaller
            note(f"Rolled back, and computed again in parts of {smaller}")
        else:
            note("Rolled back; nothing smaller is left")
            least = f"{self._size or 'one'} sample(s)" if self._divisible else "one batch"
            raise OutOfMemory(
                f"Not enough memory for the {self._phase} of even {least} at a time: {lack}. The model is as it "
                "was. Free memory held by other programs or tensors, or use smaller batches."
            )


class GuardedValidation(_Guarded):
    """Stands in for a model's `test_function`; training is not touched.

    Args:
        size: Samples to evaluate at once, at first; None for whole batches.
        kept: Where a model's steps are kept.
        feed: The ways back to the data in this process.
    """

    def __init__(
        self,
        model: keras.Model,
        size: int | None,
        journal: Journal,
        kept: dict[Any, Any],
        feed: Feed,
        peers: Peers,
    ) -> None:
        super().__init__(model, size, "validation", journal, divisible=not is_custom(model, "test_step"))
        self._reader, self._peers = Reader("validation", journal, feed), peers
        self._at_end = EndOfData(model, "test_function", journal, kept, peers)
        self._share = peers.share_of(model, "validation")
        self._steps = kept.setdefault(("test", model.run_eagerly, model.jit_compile, self._share), {})

    def __call__(self, iterator: Any) -> Any:
        """Evaluates as many batches as Keras wants to execute at once; returns the last one's logs."""
        count = self._model.steps_per_execution
        return self._reader.each(iterator, count, self._evaluate, self._at_end)

    def _evaluate(self, batch: Any) -> Any:
        batch, spec = self._peers.begin(self._model, batch, self._reader.spec, "validation")
        if batch is None:
            self._rollback.note()
            logs = None
        else:
            logs = self._run(batch, lambda: self._step()(batch, spec))
        return self._peers.exchange(self._model, self._rollback.noted, logs)

    def _step(self) -> CompiledStep:
        if self._size not in self._steps:
            body = build_test_body(self._model, self._size, self._share)
            self._steps[self._size] = CompiledStep(self._model, body)
        step: CompiledStep = self._steps[self._size]
        return step


class GuardedPrediction(_Guarded):
    """Stands in for a model's `predict_function`."""

    def __init__(
        self, model: keras.Model, predict: Callable[[Any], Any], journal: Journal, peers: Peers
    ) -> None:
        super().__init__(model, None, "prediction", journal, divisible=True)
        self._predict, self._peers = predict, peers

    def __call__(self, batches: list[Any]) -> Any:
        """Predicts some batches at once, as Keras's function does."""
        count = self._peers.count
        if count == 1 or any(count_samples(batch) < count for batch in batches):
            return self._run(batches[0], lambda: self._predict_in_parts(batches))
        outputs = [self._peers.join_rows(self._predict_share(batch)) for batch in batches]
        return keras.tree.map_structure(lambda *tensors: tf.concat(tensors, 0), *outputs)

    def _predict_share(self, batch: Any) -> Any:
        """Predicts this process's samples of a batch; those of all are put together afterwards."""
        first, end = split_evenly(count_samples(batch), self._peers.rank, self._peers.count)
        mine = slice_batch(batch, first, end - first)
        return self._run(mine, lambda: self._predict_in_parts([mine]))

    def _predict_in_parts(self, batches: list[Any]) -> Any:
        if self._size is None:
            return self._predict(batches)
        outputs = [self._predict([part]) for batch in batches for part in cut(batch, self._size)]
        return keras.tree.map_structure(lambda *tensors: tf.concat(tensors, 0), *outputs)


def slice_batch(batch: Any, first: int, size: int) -> Any:
    """Returns some samples of a batch."""
    return keras.tree.map_structure(lambda leaf: slice_samples(leaf, first, size), batch)


def cut(batch: Any, size: int | None) -> list[Any]:
    """Cuts a batch into parts of `size` samples; None for the whole batch."""
    samples = count_samples(batch)
    if size is None or samples <= size:
        return [batch]

    def take(start: int) -> Any:
        return keras.tree.map_structure(
            lambda leaf: None if leaf is None else leaf[start : start + size], batch
        )

    return [take(start) for start in range(0, samples, size)]


def _halve(samples: int, size: int | None) -> int | None:
    """Returns the next smaller part of a batch to compute at once; None where there is none."""
    now = min(size or samples, samples)
    smaller = [other for other in list_sizes(samples) if other < now]
    return next((other for other in smaller if other <= _HALF * now), smaller[-1] if smaller else None)
