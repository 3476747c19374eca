"""Training under guard: a step that runs out of memory is rolled back, tightened and done again."""

import gc
from functools import partial
from typing import Any

import tensorflow as tf

from memfit.steps.host_arrays import HostArrays
from memfit.steps.installing import is_custom
from memfit.steps.placeholder_buffers import settle_logs
from memfit.steps.recipe import Recipe
from memfit.steps.train_step import TrainStep, build
from memfit.training.guard.ending import EndOfData
from memfit.training.guard.events import OutOfMemory, Shortage, attempt, free
from memfit.training.guard.reading import Reader, check_shapes
from memfit.training.guard.replaying import Replaying
from memfit.training.peers import Peers


class GuardedTraining(Replaying):
    """Stands in for a model's `train_function`.

    Args:
        *replayed: As of `Replaying`.
        host: What steps read their samples from; None where the reader gives whole batches.
        at_end: What to do at the end of the data.
        peers: The other processes that train the model.
    """

    def __init__(
        self,
        *replayed: Any,
        reader: Reader,
        host: HostArrays | None,
        at_end: EndOfData,
        peers: Peers,
    ) -> None:
        super().__init__(*replayed)
        self._reader, self._host, self._peers = reader, host, peers
        self._at_end = at_end

    def __call__(self, iterator: Any) -> Any:
        """Trains as many batches as Keras wants to execute at once; returns the last one's logs."""
        return self._reader.each(iterator, self.owner.steps_per_execution, self._train, self._at_end)

    def _build(self, recipe: Recipe) -> TrainStep:
        return build(self.owner, recipe, self._host, share=self._peers.share_of(self.owner, "training"))

    def _train(self, data: Any) -> Any:
        data, spec = self._peers.begin(self.owner, data, self._reader.spec, "training", self._host)
        logs = None
        if data is None:
            self.skip(spec)
        else:
            with self._peers.computing(lambda: self.step.undo()):
                logs = self._differentiate(data, spec)
        step = self.step
        logs = self._peers.exchange(self.owner, step.changes, logs, step)
        self._update()
        self._peers.share_weights(self.owner)
        self.settle()
        return settle_logs(logs)

    def _differentiate(self, data: Any, spec: Any) -> Any:
        """Computes the gradients of a batch."""
        read = (lambda: data) if self._host is None else partial(self._host.read, data)
        try:
            return self.compute(data, spec, read)
        except OutOfMemory:
            raise
        except (tf.errors.OpError, RuntimeError):
            if self._host is None and not is_custom(self.owner, "train_step"):
                check_shapes(self.owner, data, self.batch)
            raise

    def _update(self) -> None:
        """Updates the weights; an update that was cut off is finished with its gradients in the host's memory."""
        step = self.step
        _, lack = attempt(step.update)
        if lack is None:
            return
        gc.collect()
        if (reason := step.update_lost) is not None:
            raise self.fail_half_updated(lack, reason)
        if not step.updates_from_host:
            self.note(
                lack,
                "The gradients are kept in the host's memory; the update continues from there where it stopped, "
                "one weight after the other, and so do later ones",
            )
            _, lack = attempt(step.finish_update)
            if lack is None:
                return
        if step.update_has_begun:
            helps = self.tightening.say_what_helps_an_update()
            raise self.fail_half_updated(lack, "there was no memory to finish it", helps)
        step.undo()
        self.note(lack, "Rolled back; there is no memory for the optimizer's update")
        raise self._fail_without_update(lack, "update")

    def _prepare(self) -> None:
        """Builds all steps, and with the first of them the optimizer's state."""
        _, lack = attempt(super()._prepare)
        if lack is not None:
            raise self._fail_without_update(lack, "state")

    def _fail_without_update(self, lack: Shortage, what: str) -> OutOfMemory:
        """Builds the error of an optimizer whose state or update fits with no recipe."""
        there = free()
        left = "" if there is None else f"; {there} free"
        helps = self.tightening.say_what_helps_an_update()
        return OutOfMemory(
            f"The optimizer's {what} does not fit: {lack}{left}. The model is as it was before this batch. {helps}"
        )
