"""Skipping batches that an earlier process has trained: steps that do nothing, and data moved to the next batch."""

import contextlib
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from memfit.compat import keras_training
from memfit.data.pipeline import pipeline_of
from memfit.steps.installing import is_custom


class SkippedSteps:
    """Stands in for a model's training and validation steps.

    Keras opens its data and counts its steps as in the run before. Nothing is read meanwhile: the iterator that
    Keras holds at the end is moved forward, all at once.
    """

    def __init__(self, model: Any, steps: Sequence[int], tests: Sequence[int], logs: Any) -> None:
        """Takes the place of both functions.

        Args:
            model: The model.
            steps: How many training steps every epoch had; an epoch that was not finished has none here.
            tests: How many steps every validation had.
            logs: What the last training step returned.
        """
        self._model, self._ends, self._test_ends, self._logs = model, list(steps), list(tests), logs
        self._own = (model.train_function, model.test_function)
        self._epochs = self._validations = 0
        self._iterator: Any = None
        self._done = self._tested = 0
        self._unread = 0
        model.train_function, model.test_function = self._train, self._test

    def begin_epoch(self) -> None:
        """Notes that Keras begins an epoch."""
        self._epochs, self._done = self._epochs + 1, 0

    def begin_validation(self) -> None:
        """Notes that Keras begins a validation."""
        self._validations, self._tested = self._validations + 1, 0

    def leave(self, *, at_end: bool = False) -> None:
        """Gives the model its own functions back.

        Args:
            at_end: Whether the data had ended before: then it ends once more, and nothing is computed of that.
        """
        self._model.train_function, self._model.test_function = self._own
        if at_end:
            self._model.train_function = self._end

    def move(self, data: Any, seen: int, *, kept_open: bool, new_epoch: bool) -> None:
        """Moves the data to the batch after the last one skipped.

        Args:
            data: What Keras reads.
            seen: Where a pipeline of memfit was: its number of finished passes.
            kept_open: Whether Keras reads on in the next epoch (`steps_per_epoch`).
            new_epoch: Whether the next batch is the first of an epoch.
        """
        pipeline = pipeline_of(data)
        goes_on = not new_epoch or (kept_open and not self._is_exhausted(data))
        unread = self._unread if goes_on else 0
        if pipeline is not None:
            pipeline.order.seek(seen, unread % pipeline.batches)
        elif self._iterator is not None:
            with contextlib.suppress(StopIteration, tf.errors.OutOfRangeError):
                for _ in range(unread):
                    next(self._iterator)

    def _is_exhausted(self, data: Any) -> bool:
        cardinality = getattr(data, "cardinality", None)
        batches = int(cardinality()) if cardinality is not None else -1
        return 0 < batches <= self._unread

    def _train(self, iterator: Any) -> Any:
        if self._iterator is None:
            _make_variables(self._model, iterator.element_spec)
        if iterator is not self._iterator:
            self._iterator, self._unread = iterator, 0
        # Data of unknown length ends where it ended before.
        if self._epochs <= len(self._ends) and self._done >= self._ends[self._epochs - 1]:
            raise StopIteration
        self._done += self._model.steps_per_execution
        self._unread += self._model.steps_per_execution
        return self._logs

    def _end(self, iterator: Any) -> Any:
        self._model.train_function = self._own[0]
        raise StopIteration

    def _test(self, iterator: Any) -> Any:
        if (
            self._validations <= len(self._test_ends)
            and self._tested >= self._test_ends[self._validations - 1]
        ):
            raise StopIteration
        self._tested += self._model.steps_per_execution
        return {}


def _make_variables(model: keras.Model, spec: Any) -> None:
    """Makes the variables that the first step would make, so that a checkpoint can be put back into them.

    Only tracing it tells which a custom step makes: a GAN's optimizers, a model's that has no `call`.
    """
    if is_custom(model, "train_step") and not model.run_eagerly:
        step = tf.autograph.experimental.do_not_convert(lambda data: model.train_step(data))
        tf.function(step).get_concrete_function(spec)
    else:
        keras_training.build(model, *keras.utils.unpack_x_y_sample_weight(spec))
