"""The job of a loss function in a loop of the user's own, and its plan."""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import tensorflow as tf

from memfit.errors import InvalidInput
from memfit.estimation.recording.specs import Leaf, Spec
from memfit.estimation.recording.step import Build
from memfit.planning.does_not_fit import DoesNotFit
from memfit.planning.job import RECORDED_PARTS, Job, vary_whole_numbers
from memfit.planning.plan import Plan
from memfit.planning.recorded_plan import make_plan
from memfit.sizes import Size
from memfit.steps.losses.additivity import Trial, try_in_parts
from memfit.steps.losses.step import GradientStep
from memfit.steps.micro_batches.trial import SAMPLES
from memfit.steps.micro_batches.varying import choose_rows
from memfit.steps.recipe import Recipe
from memfit.steps.rematerialisation import Segments, find_choices_of_loss


@dataclass(frozen=True)
class LossJob(Job):
    """A loss function whose gradients are to be fitted; `model` is the `LossFunction`, `data` its `Spec`.

    Attributes:
        samples: Arrays with a few real samples, for the trial in parts; None for synthetic ones.
    """

    is_fit: ClassVar[bool] = False
    samples: tuple[Any, ...] | None = None

    @property
    def fixed_step(self) -> str | None:
        """Nothing fixes it."""
        return None

    @property
    def is_guarded(self) -> bool:
        """Its own step is the guarded one: the update is the user's."""
        return False

    @cached_property
    def trial(self) -> Trial:
        """What came of computing a few samples in parts."""
        samples = self.samples
        if samples is None:
            samples = tuple(map(vary_whole_numbers, self.spec.batch(SAMPLES)))
        trial = try_in_parts(self.model, samples)
        self.model.sums = trial.sums
        return trial

    @property
    def why_not_micro_batches(self) -> str | None:
        return self.trial.why_not

    @cached_property
    def outputs_differ(self) -> str | None:
        """Why micro-batches would give something else than the whole batch, or None; its loss was tried with it."""
        return self.trial.differs

    @cached_property
    def state_changes(self) -> str | None:
        """None: the trial says it, too."""
        return None

    @cached_property
    def losses_differ(self) -> str | None:
        """None: a loss function is tried as a whole."""
        return None

    @cached_property
    def segment_choices(self) -> tuple[tuple[Segments, ...], str | None]:
        loss, specs = self.model, tuple(self.spec.tensor_specs(self.reference_batch))
        try:
            choices = find_choices_of_loss(
                lambda *tensors: loss.compute(tensors)[0],
                loss.values,
                specs,
                self.reference_batch,
                compiled=bool(loss.jit_compile),
            )
        except InvalidInput as error:
            return (), str(error)
        return choices, None if choices else "no activation of this function is worth recomputing"

    def build(self, recipe: Recipe | None) -> Build | None:
        return partial(_build, recipe=recipe or Recipe())


def _build(loss: Any, recipe: Recipe) -> Any:
    return GradientStep(loss, recipe, parts=RECORDED_PARTS)


def plan_loss(job: LossJob, beside: int, reason: str) -> Plan:
    """Chooses how to compute the gradients of a loss function so that a loop fits into the memory.

    Args:
        job: The job, for all of the memory.
        beside: Bytes of that which something else takes: the optimizer's state, other networks.
        reason: What that is, in a few words.

    Raises:
        DoesNotFit: If no allowed plan fits; it says what would.
        InvalidInput: If what is beside leaves nothing.
    """
    if beside >= job.memory:
        raise InvalidInput(
            f"Weights, optimizer state and everything else in memory already take {Size(beside)}",
            received=f"memory={job.memory}",
            remedy="Give more memory, or use a smaller network",
        )
    try:
        made = make_plan(replace(job, memory=Size(job.memory - beside)))
    except DoesNotFit as error:
        if not beside:
            raise
        story = f"{error} Of the {job.memory}, {Size(beside)} are not available to it ({reason})."
        needed = Size(error.smallest_memory + beside).as_advised()
        raise DoesNotFit(story, needed, error.largest_batch, error.fidelity) from None
    if not beside:
        return made
    return replace(
        made,
        memory=job.memory,
        stock=Size(made.stock + beside),
        predicted=Size(made.predicted + beside),
        source=f"{made.source}; and {Size(beside)} more ({reason})",
    )


def spec_of_call(loss: Any, tensors: Any) -> Spec:
    """Returns what the tensors of a call look like, from themselves or from their specs.

    Raises:
        InvalidInput: If a dimension beside the samples is not known.
    """
    leaves = []
    for tensor, has in zip(tensors, loss.call.has_samples, strict=True):
        shape = tuple(tensor.shape)[1:] if has else tuple(tensor.shape)
        if None in shape:
            raise InvalidInput("Every dimension except the batch must be known", received=tuple(tensor.shape))
        leaves.append(Leaf(shape, tensor.dtype.name, has))
    return Spec(tuple(leaves))


def few_samples_of(loss: Any, tensors: Any) -> tuple[Any, ...] | None:
    """Returns arrays with a few samples from all over a call, for its trial in parts; None where there are too few.

    All tensors but the first are taken for labels: of each that has several values, two are among the chosen.
    """
    count = loss.call.count_samples(tensors)
    if count is None or count < SAMPLES or not all(hasattr(tensor, "numpy") for tensor in tensors):
        return None
    _, *labels = (tensor for tensor, has in zip(tensors, loss.call.has_samples, strict=True) if has)
    rows = choose_rows(labels, count, SAMPLES)
    few = loss.call.map_samples(lambda tensor: tf.gather(tensor, rows), tensors)
    return tuple(tensor.numpy() for tensor in few)
