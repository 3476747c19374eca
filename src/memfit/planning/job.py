"""The job a plan is made for: what every lever looks at."""

import logging
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Literal, Self

import keras
import numpy as np
import tensorflow as tf

from memfit.budgets.gpu_table import GPU, present_gpu
from memfit.compat import keras_training
from memfit.compat.keras_layers import own_seed_generators
from memfit.data.peeking import FirstBatch
from memfit.data.shapes import leaves_of
from memfit.errors import InvalidInput, in_one_line
from memfit.estimation.recording.specs import Spec, mapped, spec_of
from memfit.estimation.recording.step import Build
from memfit.estimation.worst_batch import leaves_open
from memfit.planning.fidelity import Fidelity
from memfit.planning.host_fed import HostFed
from memfit.sizes import Size
from memfit.steps.installing import (
    is_custom,
    why_not_micro_batches,
    why_not_rematerialised,
    why_step_is_fixed,
)
from memfit.steps.micro_batches.additivity import has_to_be_checked
from memfit.steps.micro_batches.exactness import Verdict, try_in_parts
from memfit.steps.micro_batches.trial import SAMPLES
from memfit.steps.recipe import Recipe
from memfit.steps.rematerialisation import Segments, find_choices, find_choices_of_step
from memfit.steps.train_step import build

# The batch that is looked at first when the largest one is asked for.
_REFERENCE_BATCH = 32
# In how many micro-batches a batch is cut when such a step is recorded: the second one is like all later ones.
RECORDED_PARTS = 2
_LEAST_SAMPLES = 5  # real ones for a trial of micro-batches; of fewer, parts may be too small to differ
_progress = logging.getLogger("memfit.progress")
_applied: list[Any] = []  # changes to the copy of a model that is recorded; let go of, they would be undone


@dataclass(frozen=True)
class Job:
    """A training to be fitted.

    Attributes:
        model: The compiled Keras model.
        batch_size: The batch of one optimizer update, or "max" for as many samples as fit.
        memory: Bytes that a step may take on its device.
        allow: The farthest that a lever may go.
        data: An example of the training data, or None.
        validation_batch_size: Samples in a validation batch; None where there is no validation.
        device: The GPU it is planned for; None for this machine's CPU.
        ranks: How many processes train together; the batch is the largest share of one of theirs.
        shard_optimizer: Whether each of them may keep a part of the optimizer's state.
        beside: Bytes beside a step: adding up gradients over ranks, and other tensors of the process.
        only_batch: The only batch that its step was seen to run with; None where it runs with others, too.
        is_fit: Whether Keras's `fit` trains; otherwise it is a loop of the user's own.
    """

    is_fit: ClassVar[bool] = True
    model: Any
    batch_size: int | Literal["max"]
    memory: Size
    allow: Fidelity
    data: Any = None
    validation_batch_size: int | None = None
    device: GPU | None = None
    ranks: int = 1
    shard_optimizer: bool = False
    beside: int = 0
    only_batch: int | None = None

    def with_only_batch(self, size: int) -> Self:
        """Returns this job, and what was found out about it, with the only batch that its step runs with."""
        job = copy(self)
        object.__setattr__(job, "only_batch", size)
        return job

    @property
    def all_memory(self) -> Size:
        """Bytes that the job may take on its device."""
        return Size(self.memory + self.beside)

    @property
    def reference_batch(self) -> int:
        """The batch asked for, or one to begin with where the largest is asked for."""
        return _REFERENCE_BATCH if self.batch_size == "max" else self.batch_size

    @property
    def fixed_step(self) -> str | None:
        """Says why no lever can compute the model's step in another way, or None."""
        return why_step_is_fixed(self.model)

    @property
    def why_not_micro_batches(self) -> str | None:
        """Says why a batch cannot be cut into micro-batches, or None where it can."""
        reason = why_not_micro_batches(self.model)
        return self._verdict.adds_up if reason is None and has_to_be_checked(self.model) else reason

    @property
    def is_guarded(self) -> bool:
        """Whether `fit` runs a step that can be undone, which takes other memory than Keras's own."""
        return not self.model.jit_compile

    def build(self, recipe: Recipe | None) -> Build | None:
        """Returns what builds the step of a recipe on the copy that is recorded; of None, the model's own."""
        if recipe is None:
            return None
        read = self.spec if recipe.inputs_on_host else None
        return partial(_build, recipe=recipe, any_batch=self._any_batch, read=read)

    @property
    def _any_batch(self) -> bool:
        """Whether the data leaves the size of its batches open, as arrays do; a pipeline may promise one."""
        specs = keras.tree.flatten(getattr(self.data, "element_spec", ()))
        return not specs or any(spec.shape.rank is None or spec.shape[0] is None for spec in specs)

    @cached_property
    def is_compiled(self) -> bool:
        """Whether XLA compiles the step: as the model says for a GPU that is here, as is usual for others."""
        if self.device is None:
            return False
        return bool(self.model.jit_compile) or self.device != present_gpu()

    @cached_property
    def spec(self) -> Spec:
        """What a batch of the training data looks like.

        Raises:
            CannotTell: If neither the model nor the example says it.
        """
        return spec_of(self.model, self.data)

    @cached_property
    def segment_choices(self) -> tuple[tuple[Segments, ...], str | None]:
        """The choices of segments for rematerialisation, least recomputation first, and why there are none."""
        if (reason := why_not_rematerialised(self.model)) is not None:
            return (), reason
        if self.model.run_eagerly:
            return (), "the model runs eagerly, and only a traced step can be rematerialised"
        compiled = True if self.is_compiled else None
        try:
            if is_custom(self.model, "train_step"):
                return self._choose_for_custom_step()
            choices = find_choices(self.model, self.reference_batch, self._input_specs(), compiled=compiled)
        except InvalidInput as error:
            return (), str(error)
        return choices, None if choices else "no activation of this network is worth recomputing"

    @cached_property
    def outputs_differ(self) -> str | None:
        """Why a sample's output in a micro-batch would be another than in the whole batch, or None."""
        if not (has_to_be_checked(self.model) or own_seed_generators(self.model)):
            return None
        return self._verdict.draws or self._verdict.differs

    @cached_property
    def state_changes(self) -> str | None:
        """Which weight every pass through the model changes: micro-batches change it more often; or None."""
        return self._verdict.state if has_to_be_checked(self.model) else None

    @cached_property
    def losses_differ(self) -> str | None:
        """How training on a batch differs from training on its parts, or None; tried on real samples, if any."""
        if self.why_not_micro_batches is not None or not has_to_be_checked(self.model):
            return None
        return self._verdict.differs

    @cached_property
    def _verdict(self) -> Verdict:
        """What came of computing a few samples in parts."""
        data = self.data.batch if isinstance(self.data, FirstBatch) else self.data
        _progress.info("trying on %d samples whether micro-batches give the same", SAMPLES)
        try:
            self._build_model()
            return try_in_parts(self.model, data if _has_samples(data) else self._make_samples())
        except Exception as error:  # no samples can be made, or what a user's code raises when it is built
            return Verdict(differs=f"it could not be tried in micro-batches ({in_one_line(error)})")

    def _build_model(self) -> None:
        """Builds a model as Keras's `fit` does, which is for a whole batch; a trial has a few samples."""
        if not self.model.built:
            batch = self.spec.tensor_specs(self.reference_batch)
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
            keras_training.build(self.model, x, y, sample_weight, losses_alone=True)

    def _make_samples(self) -> Any:
        """Makes samples; text as tensors, because Keras takes no array of text."""
        samples = mapped(vary_whole_numbers, self.spec.batch(SAMPLES))
        return mapped(lambda leaf: tf.constant(leaf) if leaf.dtype == object else leaf, samples)

    def _choose_for_custom_step(self) -> tuple[tuple[Segments, ...], str | None]:
        try:
            spec = self.spec.tensor_specs(self.reference_batch)
            choices = find_choices_of_step(self.model, spec, self.reference_batch)
        except Exception as error:  # whatever a user's step raises when it is traced by itself
            return (), f"its custom train_step could not be traced: {in_one_line(error)}"
        return choices, None if choices else "no activation of its custom train_step is worth recomputing"

    def _input_specs(self) -> Any:
        """Tensor specs of the inputs; None where the model tells them itself."""
        if getattr(self.model, "inputs", None) and not leaves_open(self.model):
            return None
        structure = self.spec.structure
        x = structure[0] if isinstance(structure, tuple) else structure
        return mapped(lambda leaf: tf.TensorSpec((self.reference_batch, *leaf.shape), leaf.dtype), x)


def _has_samples(data: Any) -> bool:
    """Whether there are arrays or tensors of enough samples for a trial, and not only their shapes."""
    leaves = leaves_of(data)
    return bool(leaves) and all(
        not isinstance(leaf, tf.TypeSpec) and (*getattr(leaf, "shape", ()), 0)[0] >= _LEAST_SAMPLES
        for leaf in leaves
    )


def _build(model: Any, recipe: Recipe, any_batch: bool, read: Spec | None) -> Any:
    """Builds the step to record, on the copy of the model in the recorder's process.

    Args:
        read: What a batch looks like that the step reads from the host; None where it is given one.
    """
    changes = recipe.applied(model)
    changes.__enter__()
    _applied.append(changes)  # for good: the copy ends with its process
    if read is not None:
        return HostFed(model, recipe, read, RECORDED_PARTS, any_batch)
    step = build(model, recipe, parts=RECORDED_PARTS)
    step.any_batch = any_batch
    return step


def vary_whole_numbers(array: Any) -> Any:
    """Returns zeros and ones where there are zeros alone: samples that are all the same show nothing if mixed."""
    if array.dtype.kind not in "iub":
        return array
    return np.random.default_rng(0).integers(0, 2, array.shape).astype(array.dtype)
