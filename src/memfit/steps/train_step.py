"""`build`: the one place where a recipe becomes a training step. The recorder, `fit` and the guard all run it."""

import gc
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from memfit.budgets.peaks import take_one_region
from memfit.compat import keras_layers
from memfit.errors import InvalidInput
from memfit.steps.custom_step import watch_updates
from memfit.steps.gradients import GradientShelf
from memfit.steps.host_arrays import HostArrays
from memfit.steps.installing import is_custom
from memfit.steps.micro_batches.samples import whole
from memfit.steps.micro_batches.step import (
    Apply,
    Forward,
    Step,
    micro_batched_test_step,
    micro_batched_train_step,
    whole_batch_train_step,
    whole_share_train_step,
)
from memfit.steps.placeholder_buffers import PlaceholderBuffers, settle_logs
from memfit.steps.recipe import Recipe
from memfit.steps.rematerialisation import rematerialise
from memfit.steps.rollback import ModelRollback
from memfit.steps.share import Communicator, Share
from memfit.steps.tracing import CompiledStep, Executor
from memfit.steps.update import Update


def build(
    model: keras.Model,
    recipe: Recipe,
    host: HostArrays | None = None,
    *,
    parts: int | None = None,
    share: Share | None = None,
) -> "TrainStep":
    """Builds the training step that a recipe describes.

    Args:
        model: A compiled model, with the recipe's changes applied.
        recipe: How to compute the step.
        host: What the step reads its samples from; None where it is given whole batches.
        parts: In how many micro-batches to cut a batch, instead of the recipe's size: recordings have smaller
            batches than it is for.
        share: The batch's place in a larger one, where the process is one rank of several.
    """
    return TrainStep(model, recipe, host, parts, share)


class TrainStep:
    """A training step: `compute` may fail and be undone, `update` may fail and be finished.

    With XLA, or with immediate updates, the whole step is one program, and there is nothing left to update. A
    custom `train_step` cannot be split either; for it is noted whether it had begun to update.

    All that has to be there before the first step is made when it is built: what is left of an arena as one
    region, the optimizer's state, the buffers that keep small tensors out of the way of large ones.

    Attributes:
        parts: In how many micro-batches a recorded batch is cut, whatever its size; 1 where the recipe has a size.
        any_batch: Whether it is traced for batches of any size; false where the data promises one.
        is_given_samples: True: the samples' numbers where they are on the host, as a recording's `HostFed` says.
    """

    any_batch = True
    is_given_samples = True

    def __init__(
        self,
        model: keras.Model,
        recipe: Recipe,
        host: HostArrays | None,
        parts: int | None,
        share: Share | None = None,
    ) -> None:
        self.parts = 1 if recipe.micro_batch is None or parts is None else parts
        take_one_region()
        if model.built and not model.optimizer.built and not is_custom(model, "train_step"):
            # Otherwise a loss scale would be traced as a constant. A step of one's own chooses what it trains.
            model.optimizer.build(model.trainable_variables)
        self._rollback = ModelRollback(model, settles=not recipe.is_stock)
        self._immediate, self._unfinished = recipe.immediate_update, False
        self._executor = Executor(recipe)
        self._shelf: GradientShelf | None = None
        self._update: Update | None = None
        self._begun: tf.Variable | None = None
        self.meets_others = share is not None and share.meets_others
        self._sum: Any = None
        body = self._build_body(model, recipe, parts, share)
        self._function = CompiledStep(model, body if host is None else host.feed(body))

    def _build_body(self, model: keras.Model, recipe: Recipe, parts: int | None, share: Share | None) -> Step:
        if is_custom(model, "train_step"):
            self._begun = tf.Variable(False, trainable=False)
            return watch_updates(model, self._begun, recipe.segments)
        if model.jit_compile and not model.run_eagerly:
            return build_body(model, recipe, parts=parts)
        if recipe.immediate_update:
            return lambda data: model.train_step(whole(data))
        one_pass = recipe.segments is not None and recipe.micro_batch is None
        self._shelf = GradientShelf(own_buffers=one_pass)
        self._update = Update(model, self._shelf)
        if one_pass and model.variables:
            self._placeholders = PlaceholderBuffers([variable.value for variable in model.variables])
        return build_body(model, recipe, self._shelf.put, parts, share)

    def trace(self, spec: Any) -> Any:
        """Traces the step for all batches of a spec; returns its ConcreteFunction, None if it runs eagerly."""
        return self._executor.run(lambda: self._function.trace(spec))

    def run(self, data: Any, spec: Any = None) -> Any:
        """Does a whole step in which nothing fails; returns the logs."""
        self.note()
        logs = self.compute(data, spec)
        self.update()
        return settle_logs(logs)

    def note(self) -> None:
        """Notes what `undo` puts back."""
        self._rollback.note()

    def compute(self, data: Any, spec: Any = None) -> Any:
        """Computes gradients and metrics of a batch; returns the logs."""
        self.abandon()  # what a failure before has left
        if self._shelf is not None:
            self._shelf.take_places()
        self._unfinished = True
        if self._begun is not None:
            self._begun.assign(False)
        logs = self._executor.run(lambda: self._function(data, spec))
        self._rollback.look_again()  # the first step has made the metrics' variables
        return logs

    def compute_nothing(self, spec: Any) -> None:
        """Leaves the gradients of no sample: a rank may have none of a small batch."""
        self.abandon()
        self._unfinished = True
        assert self._shelf is not None
        self._shelf.take_places()
        if not self._shelf.weights:
            self.trace(spec)
        self._shelf.put_nothing()

    def sum_over(self, ranks: Communicator) -> None:
        """Makes of the gradients, which are a rank's own, those of all ranks together."""
        if self._sum is None:
            assert self._shelf is not None
            self._sum = tf.function(partial(self._shelf.sum_over, ranks), autograph=False)
        self._sum()

    @property
    def changes(self) -> list[tuple[Any, Any]]:
        """The variables that `compute` may have changed, each with its value before."""
        return self._rollback.noted

    def undo(self) -> None:
        """Puts back what `compute` changed, and frees its gradients."""
        self.abandon()
        self._rollback.undo()
        gc.collect()

    def update(self) -> None:
        """Updates the weights."""
        if self._update is not None:
            self._update.run()
        self._unfinished = False

    def finish_update(self) -> None:
        """Does what is left of an update that failed, with the gradients in the host's memory."""
        if self._update is not None:
            self._update.finish_from_host()
        self._unfinished = False

    @property
    def updates_from_host(self) -> bool:
        """Whether updates take their gradients from the host's memory: nothing else of them can go there."""
        return self._update is not None and self._update.from_host

    @property
    def update_lost(self) -> str | None:
        """Why an update that failed cannot be finished, or None where it can."""
        return None if self._update is None else self._update.lost

    @property
    def computing_has_updated(self) -> bool:
        """Whether a `compute` that failed may have begun to change weights or optimizer."""
        return self._immediate or (self._begun is not None and bool(self._begun))

    @property
    def update_has_begun(self) -> bool:
        """Whether an `update` that failed may have changed something."""
        return self._update is not None and self._update.begun

    def abandon(self) -> None:
        """Frees the gradients of a step that was not finished."""
        if self._unfinished and self._update is not None:
            self._update.abandon()
        self._unfinished = False

    def variables(self) -> list[tf.Variable]:
        """The variables that the step keeps beside those of the model, its metrics and its optimizer."""
        shelf = [] if self._shelf is None else self._shelf.buffers()
        return [*self._rollback.buffers, *shelf]


def build_body(
    model: keras.Model,
    recipe: Recipe,
    apply: Apply | None = None,
    parts: int | None = None,
    share: Share | None = None,
) -> Step:
    """Builds what a training step does with a batch, as a function like Keras's `train_step`.

    Args:
        apply: Takes the gradients and the weights; None to update the weights at once.
    """
    if share is not None and share.meets_others and (recipe.micro_batch or recipe.segments):
        raise InvalidInput(
            "With synchronized batch statistics a rank computes its part of the batch in one piece",
            received=str(recipe),
            remedy='Give more memory or more ranks, or allow="near" without synchronized=True',
        )
    if recipe.segments is not None:
        forward: Forward = rematerialise(model, recipe.segments)
    else:
        forward = partial(keras_layers.forward, model, training=True)
    if recipe.micro_batch is None and share is not None and apply is not None:
        return whole_share_train_step(model, forward, apply, share)
    if recipe.micro_batch is None:
        return whole_batch_train_step(model, forward, apply)
    size: Any = recipe.micro_batch if parts is None else lambda samples: (samples + parts - 1) // parts
    return micro_batched_train_step(model, size, forward, apply, share)


def build_test_body(model: keras.Model, size: int | None, share: Share | None = None) -> Step:
    """Returns the model's own test step, or one in slices of `size` samples, or of one rank's share of a batch."""
    if size is None and share is None:
        return model.test_step
    return micro_batched_test_step(model, (lambda samples: samples) if size is None else size, share)
