"""Resuming at a batch: Keras's own `fit` skips what an earlier process has trained.

The script runs again from its beginning, and Keras's loop with it, so that the data is opened as often and in the
same order as before. But until the batch of the checkpoint the steps do nothing, nothing is read, and callbacks
hear nothing. There the values, the callbacks and the random numbers of the checkpoint are put back, the data is
moved to the batch, and everything goes on. A `fit` that had ended is skipped in the same way.
"""

import logging
import pickle
import time
from typing import Any

import keras

from memfit.compat import keras_training
from memfit.data.pipeline import pipeline_of
from memfit.planning.fingerprint import fingerprint
from memfit.steps.rollback import ModelRollback
from memfit.survival.callback_states import CallbackStates
from memfit.survival.checkpoint_files import Checkpoint
from memfit.survival.resume_checks import check_belongs, warn_of_losses
from memfit.survival.sharing import share_newest
from memfit.survival.skipping import SkippedSteps
from memfit.survival.snapshots import copy_values, is_whole, put_back, put_back_random_states, random_states
from memfit.survival.supervision import Stopped, Supervision, finished_name
from memfit.training.feeding import Feed
from memfit.training.records.recorder import Recorder, mark_current

_LOG = logging.getLogger("memfit")


class ResumingCallbacks(keras.callbacks.CallbackList):
    """Keras's list of callbacks; it saves checkpoints behind batches, and skips what an earlier process trained."""

    def __init__(
        self,
        callbacks: Any,
        *,
        supervision: Supervision,
        call: int,
        data: Any,
        feed: Feed,
        kept_open: bool,
        data_fingerprint: int,
        **params: Any,
    ) -> None:
        """Prepares one `fit`.

        Args:
            callbacks: The user's.
            supervision: Of this process.
            call: Number of this `fit` in the script.
            data: What Keras reads.
            feed: What is known of its order.
            kept_open: Whether Keras reads on in the next epoch (`steps_per_epoch`).
            data_fingerprint: What the data is recognised by; 0 where nothing is known.
            **params: What Keras gives to its own list.
        """
        self.callbacks: list[Any] = []
        super().__init__(callbacks, add_history=True, **params)
        self._supervision, self._call = supervision, call
        self._data, self._feed, self._kept_open, self._data_fingerprint = (
            data,
            feed,
            kept_open,
            data_fingerprint,
        )
        # What keeps the record of the run has no state that a checkpoint could hold.
        self._states = CallbackStates([cb for cb in self.callbacks if not isinstance(cb, Recorder)])
        ended = supervision.finished(call)
        self._before, self._finished = share_newest(
            ended or supervision.unfinished(call), finished=ended is not None
        )
        self._skipping: SkippedSteps | None = None
        self._steps: list[int] = []  # of every epoch
        self._tests: list[int] = []  # of every validation
        self._epoch_random: dict[str, Any] = {}
        self._model_fingerprint = ""
        self._last_logs: Any = {}
        self._passes = 0  # of the data, finished when the last whole batch was
        self._begun = self._heard = False  # whether callbacks know of the next batch; from an earlier process
        self._begun_random: dict[str, Any] = {}
        self._ended = (
            False  # whether the data has ended in a batch that was begun, which changes the model, too
        )
        # What a validation changes, as it was before: metrics' states are the epoch's until then.
        self._validated: ModelRollback | None = None

    # What Keras calls, in the order in which it calls it.

    def on_train_begin(self, logs: Any = None) -> None:
        """Hands the event on, and puts the callbacks' states back."""
        if self._before is None:
            warn_of_losses(self._states.list_unsaved(), self._feed)
            super().on_train_begin(logs)
            return
        facts, objects = self._before.facts, self._before.unpickled()
        ends = facts["steps"] if self._finished or facts["batch"] == 0 else facts["steps"][:-1]
        self._skipping = SkippedSteps(self.model, ends, facts["tests"], objects["logs"])
        if self._finished:
            return
        if not self._states.match(objects["callbacks"]):
            _LOG.warning("The callbacks differ from those of the checkpoint, so they start from scratch.")
            super().on_train_begin(logs)
            return
        self._states.before_train_begin(objects["callbacks"])
        everyone = self.callbacks
        # BackupAndRestore would go back to its own, older state.
        self.callbacks = [cb for cb in everyone if not isinstance(cb, keras.callbacks.BackupAndRestore)]
        super().on_train_begin(logs)
        self.callbacks = everyone
        self._states.put_back(objects["callbacks"])

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Hands the event on, unless the epoch was begun before."""
        self._epoch, self._steps, self._ended = epoch, [*self._steps, 0], False
        if self._skipping is not None and self._before is not None:
            self._skipping.begin_epoch()
            facts = self._before.facts
            if self._finished or facts["epoch"] != epoch:
                return
            if facts["batch"] > 0:
                put_back_random_states(self._before.unpickled()["epoch_random"])
                bar = keras_training.progress_bar(self)
                if bar is not None:
                    bar.on_epoch_begin(epoch, logs)
                return
            self._restore(self._before)
            self.model.reset_metrics()  # Keras had done it before the values were put back
        self._epoch_random = random_states()
        self._note({})
        self._supervision.snapshot = self._snapshot
        self._supervision.position.write(self._call, epoch, 0)
        if not self._heard:
            super().on_epoch_begin(epoch, logs)
        elif (bar := keras_training.progress_bar(self)) is not None:
            bar.on_epoch_begin(epoch, logs)
        self._begun_random = random_states()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Hands the event on."""
        if self._skipping is None:
            if not self._heard:
                super().on_train_batch_begin(batch, logs)
            self._begun, self._heard = True, False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Hands the event on, and saves where it is time to."""
        self._steps[-1] = batch + 1
        if self._before is not None and self._skipping is not None:
            here = self._before.facts["epoch"], self._before.facts["batch"]
            if not self._finished and here == (self._epoch, batch + 1):
                self._restore(self._before)
            return
        super().on_train_batch_end(batch, logs)
        self._note(logs)
        self._supervision.position.write(self._call, self._epoch, batch + 1)
        self._save_if_due(self._epoch, batch + 1, logs)

    def on_test_begin(self, logs: Any = None) -> None:
        """Hands the event on."""
        self._tests = [*self._tests, 0]
        if self._skipping is None:
            self._ended = self._begun
            self._validated = ModelRollback(self.model)
            self._validated.note()
            super().on_test_begin(logs)
        else:
            self._skipping.begin_validation()

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Hands the event on."""
        if self._skipping is None:
            super().on_test_batch_begin(batch, logs)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Hands the event on."""
        self._tests[-1] = batch + 1
        if self._skipping is None:
            super().on_test_batch_end(batch, logs)

    def on_test_end(self, logs: Any = None) -> None:
        """Hands the event on."""
        if self._skipping is None:
            super().on_test_end(logs)
            self._validated = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Hands the event on, and saves where it is time to."""
        if self._skipping is not None and self._before is not None:
            if self._finished and len(self._steps) == len(self._before.facts["steps"]):
                self.model.stop_training = True
            return
        self._ended = self._begun
        super().on_epoch_end(epoch, logs)
        self._note({})
        if not self.model.stop_training and epoch + 1 < self.params["epochs"]:
            self._save_if_due(epoch + 1, 0, {})

    def on_train_end(self, logs: Any = None) -> None:
        """Hands the event on."""
        if self._skipping is None:
            super().on_train_end(logs)
        else:
            self._skipping.leave()

    # What it does with them.

    def end(self) -> None:
        """Saves the state in which `fit` left the model, or puts back the one in which it had left it before."""
        if self._finished and self._before is not None:
            self._check(self._before)
            put_back(self.model, self._before.arrays)
            objects = self._before.unpickled()
            if self._states.match(objects["callbacks"]):
                self._states.put_back(objects["callbacks"])
            put_back_random_states(objects["random"])
            if (pipeline := pipeline_of(self._data)) is not None:
                pipeline.order.seek(self._before.facts["passes"], 0)
            return
        self._note({})
        writer = self._supervision.writer
        if self._supervision.writes and writer.save_now(
            self._checkpoint(self._epoch + 1, 0, {}), finished_name(self._call)
        ):
            writer.forget()
        if self._supervision.stopping:
            raise Stopped

    def _restore(self, before: Checkpoint) -> None:
        """Puts everything back as it was at the checkpoint."""
        facts = before.facts
        if self._skipping is None:
            return
        self._check(before)
        if self._feed.reproducible:
            new = facts["batch"] == 0
            self._skipping.move(self._data, facts["passes"], kept_open=self._kept_open, new_epoch=new)
        # A checkpoint of memfit 0.1.0 has no "ended".
        self._skipping.leave(at_end=facts.get("ended", False))
        self._skipping = None
        put_back(self.model, before.arrays)
        objects = before.unpickled()
        self._epoch_random = objects["epoch_random"]
        put_back_random_states(objects["random"])
        self.model.stop_training = facts["stopped"]
        self._heard = facts["begun"]
        self._before = self._supervision.reached = None  # as large as the model
        self._note(objects["logs"])
        self._supervision.snapshot = self._snapshot
        where = f"after batch {facts['batch']} of" if facts["batch"] else "at the beginning of"
        _LOG.info("Continues %s epoch %d.", where, facts["epoch"] + 1)

    def _save_if_due(self, epoch: int, batch: int, logs: Any) -> None:
        stopping, writer = self._supervision.stopping, self._supervision.writer
        possible = (
            self._supervision.writes and (batch == 0 or self._feed.reproducible) and is_whole(self.model)
        )
        if possible and (stopping or writer.is_due()):
            begun = time.monotonic()
            checkpoint = self._checkpoint(epoch, batch, logs)
            mark_current("checkpoint")
            if stopping:
                writer.save_now(checkpoint)
            else:
                writer.save(checkpoint, time.monotonic() - begun)
        if stopping:
            raise Stopped

    def _note(self, logs: Any) -> None:
        """Notes what is known behind a batch, and no longer once the next one was begun."""
        pipeline = pipeline_of(self._data)
        self._last_logs, self._passes = logs, 0 if pipeline is None else pipeline.order.position.epoch
        self._begun = False

    def _snapshot(self) -> Checkpoint | None:
        """Returns the state behind the last whole batch, where a step or a validation was rolled back to it.

        None where data that cannot be repeated has to begin its epoch again, or a part of the optimizer's state
        was another rank's: then the last checkpoint counts.
        """
        batch = self._steps[-1]
        if (batch and not self._feed.reproducible) or not is_whole(self.model):
            return None
        if self._validated is not None:
            self._validated.undo()
            self._tests = self._tests[:-1]
        if batch:
            return self._checkpoint(self._epoch, batch, self._last_logs)
        self._steps = self._steps[:-1]
        return self._checkpoint(self._epoch, 0, {}, random=self._begun_random)

    def _checkpoint(
        self, epoch: int, batch: int, logs: Any, random: dict[str, Any] | None = None
    ) -> Checkpoint:
        keras_training.flush(self)
        self._model_fingerprint = self._model_fingerprint or fingerprint(self.model)
        facts = {
            "call": self._call,
            "epoch": epoch,
            "batch": batch,
            "steps": self._steps,
            "tests": self._tests,
            "passes": self._passes,
            "begun": self._begun,
            "ended": self._ended,
            "stopped": bool(self.model.stop_training),
            "model": self._model_fingerprint,
            "data": self._data_fingerprint,
        }
        objects = {
            "callbacks": self._states.save(),
            "random": random or random_states(),
            "epoch_random": self._epoch_random,
            "logs": keras_training.plain_logs(logs),
        }
        return Checkpoint(facts, copy_values(self.model), pickle.dumps(objects))

    def _check(self, before: Checkpoint) -> None:
        check_belongs(before, self.model, self._data_fingerprint, self._call)
