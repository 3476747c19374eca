"""The next tighter recipe: the least change that what is known of the shortage asks for, lever by lever."""

from typing import Any

import keras

from memfit.data.peeking import FirstBatch
from memfit.estimation.margins import OF_FREE
from memfit.planning.fidelity import NOT_EXACT, Fidelity
from memfit.planning.job import Job
from memfit.planning.levers import levers_for
from memfit.planning.loss_job import LossJob, few_samples_of, spec_of_call
from memfit.sizes import Size
from memfit.steps.micro_batches.additivity import first_samples
from memfit.steps.recipe import Recipe
from memfit.training.batches import count_samples

# Where it is not known what the step takes, this much of it is tried next. Every miss costs TensorFlow's 10 s, so
# each further one in the same batch squares it: a half, a quarter, a sixteenth.
_BLINDLY = 0.5


class Tightening:
    """The way down for one model: as faithful as allowed, from what is fast to what is small."""

    def __init__(self, model: Any, allow: Fidelity) -> None:
        self._model, self._allow = model, allow
        self._job: Job | None = None

    def tighter(
        self, recipe: Recipe, data: Any, need: int | None, free: int | None, before: int = 0
    ) -> tuple[Recipe, str] | None:
        """Returns the next recipe and what is to be said of it; None where there is none.

        Args:
            recipe: The one that ran out of memory.
            need: What a step with this recipe was seen to take, or None.
            before: How often it was made tighter for this batch already.
        """
        job, samples = self._look_at(data)
        known = need is not None and free is not None and free < need
        share = OF_FREE * free / need if known else _BLINDLY**2**before  # type: ignore[operator]
        for fidelity, lever in sorted(
            ((lever.fidelity(job), lever) for lever in levers_for(job)), key=lambda pair: pair[0]
        ):
            if fidelity > self._allow or lever.why_not(job) is not None:
                continue
            tighter = lever.tighten(job, recipe, samples, share)
            if tighter is not None:
                remark = f" ({fidelity}, {NOT_EXACT}: {lever.explain(job)})"
                return tighter, "" if fidelity == Fidelity.EXACT else remark
        return None

    def say_what_would_help(self, recipe: Recipe, shortage: str, need: int | None, free: int | None) -> str:
        """Says what would help where there is nothing tighter."""
        parts = [f"Not even a step in {recipe} fits: {shortage}."]
        if need is not None:
            parts.append(f"Such a step took {Size(need)} before.")
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
                why = lever.explain(job)
                parts.append(f'With allow="{fidelity}" it could continue with {lever.name} ({why}).')
        parts.append("Free memory held by other programs or tensors, or allow more.")
        return " ".join(parts)

    def _look_at(self, data: Any) -> tuple[Job, int]:
        x = keras.utils.unpack_x_y_sample_weight(data)[0]
        samples = count_samples(x)
        if self._job is None:
            self._job = Job(self._model, samples, Size(0), self._allow, data=FirstBatch(first_samples(data)))
        return self._job, samples


class LossTightening(Tightening):
    """The same for a loss function, which is tried in parts as a whole."""

    def _look_at(self, data: Any) -> tuple[Job, int]:
        samples = self._model.call.count_samples(data) or 1
        if self._job is None:
            spec = spec_of_call(self._model, data)
            few = few_samples_of(self._model, data)
            self._job = LossJob(self._model, samples, Size(0), self._allow, data=spec, samples=few)
        return self._job, samples
