"""The job a plan is made for: what every lever looks at."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from memfit.budgets.gpu_table import GPU, present_gpu
from memfit.errors import CannotTell, InvalidInput
from memfit.estimation.recording.specs import Spec, mapped, spec_of
from memfit.estimation.worst_batch import leaves_open
from memfit.planning.fidelity import Fidelity
from memfit.sizes import Size
from memfit.steps.installing import why_step_is_fixed
from memfit.steps.micro_batches.exactness import find_difference
from memfit.steps.rematerialisation import Segments, find_choices

# The batch that is looked at first when the largest one is asked for.
_REFERENCE_BATCH = 32
# Samples of the trial whether micro-batches change anything.
_TRIED_SAMPLES = 5


@dataclass(frozen=True)
class Job:
    """A training to be fitted.

    Attributes:
        model: The compiled Keras model.
        batch_size: The batch of one optimizer update, or "max" for as many samples as fit.
        memory: Bytes it may take on its device.
        allow: The farthest that a lever may go.
        data: An example of the training data, or None.
        validation_batch_size: Samples in a validation batch; None where there is no validation.
        device: The GPU it is planned for; None for this machine's CPU.
    """

    model: Any
    batch_size: int | Literal["max"]
    memory: Size
    allow: Fidelity
    data: Any = None
    validation_batch_size: int | None = None
    device: GPU | None = None

    @property
    def reference_batch(self) -> int:
        """The batch asked for, or one to begin with where the largest is asked for."""
        return _REFERENCE_BATCH if self.batch_size == "max" else self.batch_size

    @property
    def fixed_step(self) -> str | None:
        """Says why no lever can compute the model's step in another way, or None."""
        return why_step_is_fixed(self.model)

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
        if self.fixed_step is not None:
            return (), self.fixed_step
        if self.model.run_eagerly:
            return (), "the model runs eagerly, and only a traced step can be rematerialised"
        compiled = True if self.is_compiled else None
        try:
            choices = find_choices(self.model, self.reference_batch, self._input_specs(), compiled=compiled)
        except InvalidInput as error:
            return (), str(error)
        return choices, None if choices else "no tensor of this network is worth computing again"

    @cached_property
    def micro_batches_differ(self) -> str | None:
        """Why a sample's output in a micro-batch would be another than in the whole batch, or None."""
        try:
            batch = self.spec.batch(_TRIED_SAMPLES)
        except CannotTell as error:
            return f"it could not be tried in parts ({error})"
        x = batch[0] if isinstance(batch, tuple) else batch
        return find_difference(self.model, mapped(_vary_whole_numbers, x))

    def _input_specs(self) -> Any:
        """Tensor specs of the inputs; None where the model tells them itself."""
        import tensorflow as tf

        if getattr(self.model, "inputs", None) and not leaves_open(self.model):
            return None
        structure = self.spec.structure
        x = structure[0] if isinstance(structure, tuple) else structure
        return mapped(lambda leaf: tf.TensorSpec((self.reference_batch, *leaf.shape), leaf.dtype), x)


def _vary_whole_numbers(array: Any) -> Any:
    """Returns zeros and ones where there are zeros alone: samples that are all the same show nothing if mixed."""
    import numpy as np

    if array.dtype.kind not in "iub":
        return array
    return np.random.default_rng(0).integers(0, 2, array.shape).astype(array.dtype)
