"""Training under guard: a step that runs out of memory is rolled back, tightened and done again."""

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from memfit.steps.host_arrays import HostArrays
from memfit.steps.installing import is_custom
from memfit.steps.placeholder_buffers import settle_logs
from memfit.steps.recipe import Recipe
from memfit.steps.train_step import TrainStep, build
from memfit.training.guard.events import Journal, OutOfMemory, attempt
from memfit.training.guard.reading import Reader, check_shapes
from memfit.training.guard.replaying import Replaying
from memfit.training.guard.tightening import Tightening
from memfit.training.guard.ways import Ways
from memfit.training.peers import ALONE, Peers

# How often an update is taken up again: each time TensorFlow itself waits 10 s for memory.
_UPDATES = 3


class GuardedTraining:
    """Stands in for a model's `train_function`.

    Args:
        host: What steps read their samples from; None where the reader gives whole batches.
        after_batch: What to call with the number of each batch that was trained, or None.
        peers: The other processes that train the model.
    """

    def __init__(
        self,
        model: keras.Model,
        ways: Ways,
        tightening: Tightening,
        reader: Reader,
        journal: Journal,
        steps: dict[Recipe, TrainStep],
        host: HostArrays | None = None,
        after_batch: Callable[[int], None] | None = None,
        peers: Peers = ALONE,
    ) -> None:
        self._model, self._reader, self._host, self._after_batch = model, reader, host, after_batch
        self._peers = peers
        self._replaying = Replaying(
            model,
            ways,
            lambda recipe: build(model, recipe, host, share=peers.share_of(model, "training")),
            tightening,
            journal,
            steps,
        )

    @property
    def recipe(self) -> Recipe:
        """How the last batch was computed."""
        return self._replaying.recipe

    def __call__(self, iterator: Any) -> Any:
        """Trains as many batches as Keras wants to execute at once; returns the last one's logs."""
        return self._reader.each(iterator, self._model.steps_per_execution, self._train, self._peers.end_pass)

    def end(self) -> None:
        """Lets go of what only a training needs: gradients of a step that was interrupted, accumulators."""
        self._replaying.end()

    def _train(self, data: Any) -> Any:
        data, spec = self._peers.begin(self._model, data, self._reader.spec, "training", self._host)
        logs = None
        if data is None:
            self._replaying.skip(spec)
        else:
            with self._peers.computing(lambda: self._replaying.step.undo()):
                logs = self._compute(data, spec)
        step = self._replaying.step
        logs = self._peers.exchange(self._model, step.changes, logs, step)
        self._update()
        self._peers.share_weights(self._model)
        if self._after_batch is not None:
            self._after_batch(self._replaying.batch)
        self._replaying.settle()
        return settle_logs(logs)

    def _compute(self, data: Any, spec: Any) -> Any:
        """Computes the gradients of a batch."""
        read = (lambda: data) if self._host is None else partial(self._host.read, data)
        try:
            return self._replaying.compute(data, spec, read)
        except OutOfMemory:
            raise
        except (tf.errors.OpError, RuntimeError):
            if self._host is None and not is_custom(self._model, "train_step"):
                check_shapes(self._model, data, self._replaying.batch)
            raise

    def _update(self) -> None:
        """Updates the weights, and takes the update up again where it was cut off."""
        replaying, step = self._replaying, self._replaying.step
        _, lack = attempt(step.update)
        for _ in range(_UPDATES):
            if lack is None:
                return
            gc.collect()
            if (reason := step.update_lost) is not None:
                raise replaying.half_updated(lack, reason)
            replaying.note(lack, "Kept the gradients; the update continues where it stopped")
            _, lack = attempt(step.finish_update)
        if lack is None:
            return
        if step.update_has_begun:
            raise replaying.half_updated(lack, "there was no memory to finish it")
        step.undo()
        replaying.note(lack, "Rolled back; there is no memory for the optimizer's update")
        raise replaying.no_room(lack)
