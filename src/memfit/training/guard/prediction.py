"""Prediction under guard: a batch that does not fit is predicted in smaller parts."""

import gc
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from memfit.steps.rollback import Rollback
from memfit.training.guard.events import Journal, OutOfMemory, check_survivable, shortage
from memfit.training.guard.validation import half


class GuardedPrediction:
    """Stands in for a model's `predict_function`.

    Args:
        model: A model.
        predict: The function that Keras compiled.
        journal: Where events go.
    """

    def __init__(self, model: keras.Model, predict: Callable[[Any], Any], journal: Journal) -> None:
        self._model, self._predict, self._journal = model, predict, journal
        self._rollback = Rollback(model)
        self._size: int | None = None
        self._batch = 0

    def __call__(self, batches: list[Any]) -> Any:
        """Predicts some batches at once, as Keras's function does."""
        self._batch += 1
        self._rollback.note()
        while True:
            try:
                if self._size is None:
                    return self._predict(batches)
                return _joined(
                    [self._predict([part]) for batch in batches for part in parts(batch, self._size)]
                )
            except (tf.errors.OpError, RuntimeError) as error:
                lack = shortage(error)
                if lack is None:
                    raise
            check_survivable(self._model, lack)
            self._rollback.undo()
            gc.collect()
            smaller = half(batches[0], self._size)
            if smaller is None:
                raise OutOfMemory(
                    f"There is no memory to predict even one sample at a time: {lack}. "
                    "Free memory that other programs or tensors hold."
                )
            self._size = smaller
            self._journal.ran_out("prediction", self._batch, lack, f"Predicted again in parts of {smaller}")
            self._rollback.note()


def parts(batch: Any, size: int | None) -> list[Any]:
    """Cuts a batch into parts of `size` samples; None for the whole batch."""
    samples = int(next(leaf for leaf in keras.tree.flatten(batch) if leaf is not None).shape[0])
    if size is None or samples <= size:
        return [batch]
    return [_slice(batch, start, start + size) for start in range(0, samples, size)]


def _slice(batch: Any, start: int, stop: int) -> Any:
    return keras.tree.map_structure(lambda leaf: None if leaf is None else leaf[start:stop], batch)


def _joined(outputs: list[Any]) -> Any:
    if len(outputs) == 1:
        return outputs[0]
    return keras.tree.map_structure(lambda *tensors: tf.concat(tensors, 0), *outputs)
