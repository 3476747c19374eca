"""The next tighter recipe: the least change that what is known of the shortage asks for, lever by lever."""

from typing import Any

import keras

from memfit.data.peeking import FirstBatch
from memfit.data.shapes import count_samples
from memfit.errors import CannotTell
from memfit.estimation.recording.kept import size_of
from memfit.planning.fidelity import NOT_EXACT, Fidelity
from memfit.planning.job import Job
from memfit.planning.levers import LEVERS, levers_for
from memfit.planning.levers.lever import Lever
from memfit.planning.loss_job import LossJob, few_samples_of, spec_of_call
from memfit.planning.optimizer_sizes import kept_by
from memfit.planning.plan import Plan
from memfit.sizes import Size
from memfit.steps.micro_batches.exactness import choose_samples
from memfit.steps.micro_batches.trial import SAMPLES
from memfit.steps.recipe import Recipe
from memfit.steps.slots import innermost

# Where it is not known what the step takes, this much of it is tried next. Every miss costs TensorFlow's 10 s, so
# each further one in the same batch squares it: a half, a quarter, a sixteenth.
_BLINDLY = 0.5


class Tightening:
    """The way down for one model: as faithful as allowed, from what is fast to what is small.

    Args:
        model: What is trained.
        allow: How far changes may go.
        plan: What it is trained by. How far its levers go was found out while there was memory for a trial.
    """

    def __init__(self, model: Any, allow: Fidelity, plan: Plan | None = None) -> None:
        self._model, self._allow = model, allow
        self._job: Job | None = None
        self._planned = {} if plan is None else _fidelities(plan)

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
        share = free / need if known else _BLINDLY**2**before  # type: ignore[operator]
        for fidelity, lever in sorted(
            ((self._fidelity(lever, job), lever) for lever in levers_for(job)), key=lambda pair: pair[0]
        ):
            planned = lever.name in self._planned
            if fidelity > self._allow or (not planned and lever.why_not(job) is not None):
                continue
            tighter = lever.tighten(job, recipe, samples, share)
            if tighter is not None:
                return tighter, "" if fidelity == Fidelity.EXACT else self._remark(lever, job, fidelity)
        return None

    def _fidelity(self, lever: Lever, job: Job) -> Fidelity:
        return self._planned[lever.name] if lever.name in self._planned else lever.fidelity(job)

    def _remark(self, lever: Lever, job: Job, fidelity: Fidelity) -> str:
        why = "as planned" if lever.name in self._planned else lever.explain(job)
        return f" ({fidelity}, {NOT_EXACT}: {why})"

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
            fidelity = self._fidelity(lever, job)
            if fidelity <= self._allow or lever.why_not(job) is not None:
                continue
            if lever.tighten(job, recipe, samples, _BLINDLY) is not None:
                why = lever.explain(job)
                parts.append(f'With allow="{fidelity}" it could continue with {lever.name} ({why}).')
        parts.append("Free memory held by other programs or tensors, or allow more.")
        return " ".join(parts)

    def say_what_helps_an_update(self) -> str:
        """Says what would help where the optimizer's state and its update do not fit by themselves."""
        weights, optimizer = self._model.trainable_variables, innermost(self._model.optimizer)
        largest = max(weights, key=size_of)
        try:
            kept = f"keeps {kept_by(optimizer, weights)}"
        except CannotTell:
            kept = "keeps its state"
        parts = [
            f"{type(optimizer).__name__} {kept} beside {Size(sum(map(size_of, weights)))} of trained weights "
            f"({Size(size_of(largest))} in `{largest.path}`), and copies of a weight for the time of its update.",
            "No batch size changes that.",
        ]
        job = self._job or Job(self._model, "max", Size(0), self._allow)
        for lever in levers_for(job):
            if lever.of_optimizer and lever.why_not(job) is None:
                saving = lever.advise_saving(job, job.reference_batch)
                less = "" if saving is None else f" (-{saving})"
                planned = any(lever.offer(job, Recipe(), job.reference_batch))
                allow = f', with a plan that allows "{lever.fidelity(job)}"' if planned else ""
                parts.append(f"{lever.name.capitalize()}{less}{allow}: {lever.explain(job)}.")
        parts.append(f"A smaller `{largest.path}`, or more memory, helps as well.")
        return " ".join(parts)

    def _look_at(self, data: Any) -> tuple[Job, int]:
        x = keras.utils.unpack_x_y_sample_weight(data)[0]
        samples = count_samples(x)
        if self._job is None:
            few = FirstBatch(choose_samples(data, SAMPLES))
            self._job = Job(self._model, samples, Size(0), self._allow, data=few)
        return self._job, samples


def _fidelities(plan: Plan) -> dict[str, Fidelity]:
    """How far each lever goes that a plan uses."""
    used = {lever.name: plan.fidelity for lever in LEVERS if lever.is_used(plan.recipe)}
    return used | {row.name: row.fidelity for row in plan.levers if row.name in used}


class LossTightening(Tightening):
    """The same for a loss function, which is tried in parts as a whole."""

    def _look_at(self, data: Any) -> tuple[Job, int]:
        samples = self._model.call.count_samples(data) or 1
        if self._job is None:
            spec = spec_of_call(self._model, data)
            few = few_samples_of(self._model, data)
            self._job = LossJob(self._model, samples, Size(0), self._allow, data=spec, samples=few)
        return self._job, samples
