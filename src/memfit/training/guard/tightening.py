"""The next tighter recipe: the least change that what is known of the shortage asks for, lever by lever."""

from typing import Any

import keras
import tensorflow as tf

from memfit.estimation.margins import OF_FREE
from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.levers import levers_for
from memfit.planning.levers.lever import Lever
from memfit.planning.loss_job import LossJob, first_samples_of, spec_of_call
from memfit.sizes import Size
from memfit.steps.installing import is_custom
from memfit.steps.micro_batches.additivity import agree, has_to_be_checked, losses_whole_and_in_parts
from memfit.steps.recipe import Recipe
from memfit.training.batches import count_samples

# Where it is not known what the step takes, this much of it is tried next: every miss costs TensorFlow's 10 s.
_BLINDLY = 0.5


class Tightening:
    """The way down for one model: as faithful as allowed, from what is fast to what is small."""

    def __init__(self, model: Any, allow: Fidelity) -> None:
        self._model, self._allow = model, allow
        self._job: Job | None = None
        to_check = isinstance(model, keras.Model) and has_to_be_checked(model)
        self._adds_up: bool | None = None if to_check else True

    def tighter(
        self, recipe: Recipe, data: Any, need: int | None, free: int | None
    ) -> tuple[Recipe, str] | None:
        """Returns the next recipe and what is to be said of it; None where there is none.

        Args:
            recipe: The one that ran out of memory.
            need: What a step with this recipe was seen to take, or None.
        """
        job, samples = self._look_at(data)
        known = need is not None and free is not None and free < need
        share = OF_FREE * free / need if known else _BLINDLY  # type: ignore[operator]
        for fidelity, lever in sorted(
            ((self._judge(lever, job, data), lever) for lever in levers_for(job)), key=lambda pair: pair[0]
        ):
            if fidelity > self._allow or lever.why_not(job) is not None:
                continue
            tighter = lever.tighten(job, recipe, samples, share)
            if tighter is not None:
                remark = f" ({fidelity}, not exact: {self._explain(lever, job, samples)})"
                return tighter, "" if fidelity == Fidelity.EXACT else remark
        return None

    def say_what_would_help(self, recipe: Recipe, shortage: str, need: int | None, free: int | None) -> str:
        """Says what would help where there is nothing tighter."""
        parts = [f"Not even a step in {recipe} fits: {shortage}."]
        if need is not None:
            parts.append(f"Such a step was seen to take {Size(need)}.")
        if free is not None:
            parts.append(f"Free now: {Size(free)}.")
        parts.append("The model is as it was before this batch.")
        job = self._job or Job(self._model, "max", Size(0), self._allow)
        samples = job.reference_batch
        for lever in levers_for(job):
            fidelity = lever.fidelity(job)
            if fidelity <= self._allow or lever.why_not(job) is not None:
                continue
            if lever.tighten(job, recipe, samples, _BLINDLY) is not None:
                why = lever.explain(job, samples)
                parts.append(f'With allow="{fidelity}" it could go on in {lever.name} ({why}).')
        parts.append("Free memory that other programs or tensors hold, or give more.")
        return " ".join(parts)

    def _look_at(self, data: Any) -> tuple[Job, int]:
        x = keras.utils.unpack_x_y_sample_weight(data)[0]
        samples = count_samples(x)
        if self._job is None:
            seen = (
                data if is_custom(self._model, "train_step") else x
            )  # what that step takes is known to it alone
            spec = tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), seen)
            self._job = Job(self._model, samples, Size(0), self._allow, data=spec)
        return self._job, samples

    def _judge(self, lever: Lever, job: Job, data: Any) -> Fidelity:
        """A lever's fidelity; that of micro-batches is near where a loss does not add up from parts."""
        fidelity = lever.fidelity(job)
        if not _cuts_the_batch(lever, job) or self._check_losses(lever, job, data):
            return fidelity
        return max(fidelity, Fidelity.NEAR)

    def _check_losses(self, lever: Lever, job: Job, data: Any) -> bool:
        """Looks, once, whether a loss that the user wrote adds up from parts of a batch."""
        if self._adds_up is None and lever.why_not(job) is None:
            losses = losses_whole_and_in_parts(self._model, data)
            self._adds_up = losses is not None and agree(*losses)
        return self._adds_up is not False

    def _explain(self, lever: Lever, job: Job, samples: int) -> str:
        if _cuts_the_batch(lever, job) and self._adds_up is False:
            return "the loss of a batch is not known to add up from its parts"
        return lever.explain(job, samples)


class LossTightening(Tightening):
    """The same for a loss function, which is tried in parts as a whole."""

    def _look_at(self, data: Any) -> tuple[Job, int]:
        samples = self._model.call.count_samples(data) or 1
        if self._job is None:
            spec = spec_of_call(self._model, data)
            few = first_samples_of(self._model, data)
            self._job = LossJob(self._model, samples, Size(0), self._allow, data=spec, samples=few)
        return self._job, samples


def _cuts_the_batch(lever: Lever, job: Job) -> bool:
    return any(recipe.micro_batch is not None for recipe in lever.offer(job, Recipe(), 2))
