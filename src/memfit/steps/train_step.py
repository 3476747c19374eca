"""Steps that can be taken back: a training step in two halves, and steps that leave the weights alone."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import keras
import tensorflow as tf

from memfit.budgets.peaks import device_name
from memfit.compat import keras_layers
from memfit.compat.tf_runtime import refuses_to_run_one_by_one
from memfit.estimation.optimizers import is_alone, optimizers_of
from memfit.steps.gradients import GradientShelf
from memfit.steps.host_arrays import HostArrays
from memfit.steps.installing import is_custom
from memfit.steps.micro_batches.step import (
    Apply,
    Forward,
    Step,
    micro_batched_test_step,
    micro_batched_train_step,
    whole_batch_train_step,
)
from memfit.steps.rematerialisation import rematerialise, run_one_by_one
from memfit.steps.small_buffers import Nursery
from memfit.steps.update import Update
from memfit.training.guard.events import OutOfMemory, Shortage
from memfit.training.guard.tightening import Settings

Compiled = Callable[[Any, Any], Any]


class TrainStep:
    """A training step: `compute` may fail and be taken back, `update` may fail and be finished.

    With XLA the whole step is one program, and there is nothing left to update.
    A custom `train_step` cannot be split either; for it is noted whether it had begun to update.

    Args:
        model: A compiled model.
        settings: How to compute.
        host: What the step reads its samples from; None where it is given whole batches.
    """

    def __init__(self, model: keras.Model, settings: Settings, host: HostArrays | None = None) -> None:
        if model.built and not model.optimizer.built and is_alone(model):
            # Otherwise a loss scale would be traced as a constant.
            model.optimizer.build(model.trainable_variables)
        self._unfinished = False
        self._around = nullcontext if settings.segments is None else run_one_by_one
        self._update: Update | None = None
        self._begun: tf.Variable | None = None
        if is_custom(model, "train_step"):
            self._begun = tf.Variable(False, trainable=False)
            step = _watched(model, self._begun)
        elif model.jit_compile and not model.run_eagerly:
            step = train_step(model, settings)
        else:
            whole = settings.segments is not None and settings.micro_batch is None
            shelf = GradientShelf(own_places=whole)
            self._update = Update(model, shelf)
            if whole and model.variables:
                self._nursery = Nursery([variable.value for variable in model.variables])
            step = train_step(model, settings, shelf.put)
        self._function = compiled(model, step if host is None else host.fed(step))

    def compute(self, data: Any, spec: Any) -> Any:
        """Computes gradients and metrics of a batch, and returns the logs."""
        self.abandon()  # what a failure before has left
        self._unfinished = True
        if self._begun is not None:
            self._begun.assign(False)
        try:
            with self._around():
                return self._function(data, spec)
        except tf.errors.FailedPreconditionError as error:
            # Loops of somebody's own `tf.function` that was traced before cannot run one by one; nothing has run.
            if self._around is nullcontext or not refuses_to_run_one_by_one(error):
                raise
            self._around = nullcontext
            return self._function(data, spec)

    def update(self) -> None:
        """Updates the weights."""
        if self._update is not None:
            self._update.run()
        self._unfinished = False

    def finish_update(self) -> None:
        """Does what is left of an update that failed."""
        if self._update is not None:
            self._update.finish()
        self._unfinished = False

    @property
    def update_lost(self) -> str | None:
        """Why an update that failed cannot be finished, or None where it can."""
        return None if self._update is None else self._update.lost

    @property
    def computing_has_updated(self) -> bool:
        """Whether a `compute` that failed had begun to change weights or optimizer."""
        return self._begun is not None and bool(self._begun)

    @property
    def update_has_begun(self) -> bool:
        """Whether an `update` that failed may have changed something."""
        return self._update is not None and self._update.begun

    def abandon(self) -> None:
        """Lets go of the gradients of a step that was not finished."""
        if self._unfinished and self._update is not None:
            self._update.abandon()
        self._unfinished = False


def train_step(model: keras.Model, settings: Settings, apply: Apply | None = None) -> Step:
    """Returns the training step that some settings describe."""
    if settings.micro_batch is None:
        return whole_batch_train_step(model, _forward(model, settings), apply)
    return micro_batched_train_step(model, settings.micro_batch, _forward(model, settings), apply)


def test_step(model: keras.Model, size: int | None) -> Step:
    """Returns the model's own test step, or that in parts of some samples."""
    return model.test_step if size is None else micro_batched_test_step(model, size)


def check_survivable(model: keras.Model, lack: Shortage) -> None:
    """Ends where going on would end the process.

    Seen on the CPU (TensorFlow 2.21): a program of XLA that runs out of memory leaves variables whose buffers
    are freed twice; the next step, or the end of the process, then ends with SIGSEGV or SIGABRT. On a GPU nobody
    has looked.

    Raises:
        OutOfMemory: If the model's steps are compiled with XLA for the CPU.
    """
    if model.jit_compile and not model.run_eagerly and device_name().startswith("CPU"):
        raise OutOfMemory(
            f"A step that XLA had compiled ran out of memory: {lack}. On the CPU TensorFlow does not survive this: "
            "the weights cannot be trusted any more. Go on from a checkpoint (`memfit run` does), compile with "
            "jit_compile=False, or plan for less memory.",
            intact=False,
        )


def compiled(model: keras.Model, step: Step) -> Compiled:
    """Returns a step compiled as Keras would compile it, with the shapes that the data promises.

    Not with those of the batch at hand: a shorter last batch would be another trace, and where Keras's losses
    know the size of a batch they are averaged otherwise.

    Returns:
        A function of a batch and of what is known of all batches (the `element_spec` of a dataset), or None.
    """
    step = tf.autograph.experimental.do_not_convert(step)
    made: dict[Any, Any] = {}

    def on_data(data: Any, spec: Any) -> Any:
        # Data may have optional parts, which are to be None in a step.
        data = keras.tree.map_structure(lambda leaf: None if _is_optional(leaf) else leaf, data)
        if model.run_eagerly:
            return step(data)
        leaves = keras.tree.flatten(data)
        present = [leaf for leaf in leaves if leaf is not None]
        known = [leaf for leaf in keras.tree.flatten(spec) if _is_promise(leaf)]
        signature = tuple(known) if len(known) == len(present) else None
        if signature not in made:
            # Not the batch itself, which the function would hold.
            structure = keras.tree.map_structure(lambda leaf: leaf is not None, data)
            function = tf.function(
                lambda *tensors: step(_packed(structure, tensors)),
                reduce_retracing=True,
                jit_compile=model.jit_compile,
                autograph=False,
            )
            made[signature] = function if signature is None else function.get_concrete_function(*signature)
        return made[signature](*present)

    return on_data


def _packed(structure: Any, tensors: Sequence[Any]) -> Any:
    """Puts tensors in the places of a structure that are true, and None in the others."""
    left = iter(tensors)
    return keras.tree.map_structure(lambda present: next(left) if present else None, structure)


def _is_optional(leaf: Any) -> bool:
    return isinstance(leaf, tf.experimental.Optional)


def _is_promise(leaf: Any) -> bool:
    """Whether a part of a dataset's `element_spec` promises a tensor."""
    return isinstance(leaf, tf.TensorSpec | tf.RaggedTensorSpec | tf.SparseTensorSpec)


def _forward(model: keras.Model, settings: Settings) -> Forward:
    """What computes `model(x, training=True)`: the one place where a step calls the model."""
    if settings.segments is not None:
        return rematerialise(model, settings.segments)

    def forward(x: Any) -> Any:
        return keras_layers.forward(model, x, training=True)

    return forward


def _watched(model: keras.Model, begun: tf.Variable) -> Step:
    """Returns a model's own `train_step`, whose optimizers update only after all gradients, and note it."""
    optimizers = optimizers_of(model)

    def watched(optimizer: Any) -> Callable[..., Any]:
        own = optimizer.apply

        def apply(grads: Sequence[Any], trainable_variables: Any = None) -> Any:
            if trainable_variables is not None and not optimizer.built:
                optimizer.build(trainable_variables)  # the initial values must not wait for the gradients
            tensors = [
                tensor for tensor in tf.nest.flatten(grads, expand_composites=True) if tensor is not None
            ]
            with tf.control_dependencies(tensors):
                begins = begun.assign(True)
            with tf.control_dependencies([begins]):
                return own(grads, trainable_variables)

        return apply

    def train_step(data: Any) -> Any:
        for optimizer in optimizers:
            object.__setattr__(optimizer, "apply", watched(optimizer))
        try:
            return model.train_step(data)
        finally:
            for optimizer in optimizers:
                object.__delattr__(optimizer, "apply")

    return train_step
