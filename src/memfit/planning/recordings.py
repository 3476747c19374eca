"""What recordings have shown of a job's step, and what follows for recipes and batches that were not recorded."""

from collections.abc import Callable
from dataclasses import replace

from memfit.estimation.estimate import Estimate
from memfit.estimation.recording.kept import size_of
from memfit.estimation.step_timeline import StepTimeline, timeline_of
from memfit.estimation.waiting import held_bytes
from memfit.planning.candidates import Candidate, judge_fidelity, list_recipes, predict_time
from memfit.planning.fidelity import Fidelity
from memfit.planning.job import RECORDED_PARTS, Job
from memfit.planning.levers import LEVERS
from memfit.planning.levers.lever import Lever
from memfit.planning.recorded_step import RecordedStep
from memfit.steps.recipe import Recipe
from memfit.steps.rematerialisation import Segments

# Temporary tensors of a weight's size in its update, at the most: Adam's has three.
_IN_UPDATE = 4

Record = Callable[[Recipe | None, int], Estimate]


class Recordings:
    """The recorded recipes of a job, stock's first; implements `levers.lever.Facts`.

    Args:
        job: What is planned for.
        record: Records the step of a recipe, for a batch size; of None, the model's own.
    """

    def __init__(self, job: Job, record: Record) -> None:
        self.job, self._record = job, record
        self.inputs = held_bytes(job.spec.batch(1))
        self.gradients = sum(map(size_of, job.model.trainable_variables))
        self._realised = 1.0  # the part of a predicted saving that the last recording found to be real
        self._activations: dict[int, int] = {}
        self.stock = RecordedStep(record(None, job.reference_batch), job.memory, job.reference_batch)
        # Keras's own step updates weights as their gradients come.
        self._steps = {Recipe(): self.stock, Recipe(immediate_update=True): self.stock}
        if self._may_run_out_in_update():
            step = record(Recipe(), job.reference_batch)
            self._steps[Recipe()] = RecordedStep(step, job.memory, job.reference_batch)

    # What levers and candidates ask.

    def need(self, recipe: Recipe, batch_size: int) -> int:
        """What a step takes with its margin, and with the samples that wait on the device beside it.

        What was not recorded follows from what was, lever by lever.
        """
        step = self._steps.get(_kind(recipe))
        if step is not None and not recipe.inputs_on_host:
            recorded = _recorded_batch(recipe, batch_size)
            # Of a recorded batch, the samples that are not in the part being computed wait as well.
            beside = self.inputs * (batch_size - recorded) + self.waiting(batch_size)
            return step.need(recorded) + beside
        lever = self._choose_lever_to_undo(recipe)
        return self.need(lever.undo(recipe), batch_size) - lever.predict_saving(self, recipe, batch_size)

    def activations(self, batch_size: int) -> int:
        """What of the stock step's peak are activations."""
        if batch_size not in self._activations:
            self._activations[batch_size] = self.stock.activations(batch_size)
        return self._activations[batch_size]

    def waiting(self, batch_size: int) -> int:
        """What Keras's input pipeline holds in the device's memory."""
        return self.stock.estimate.waiting.at(batch_size)

    def fixed_time(self, batch_size: int) -> float:
        """The time of a step that does not depend on the batch, as a part of the stock step's."""
        return self.stock.estimate.made_from.fixed_part(batch_size)

    def saved_by_segments(self, segments: Segments, batch_size: int) -> int:
        """What segments save by their own prediction, as far as recordings have shown it to be real."""
        return int(self._realised * _predicted(segments, batch_size))

    def recomputed(self, segments: Segments) -> float:
        """The extra time of segments: by the kernels that a GPU's compiler made of them, where it was asked."""
        step = self._steps.get(Recipe(segments=segments))
        measured = None if step is None else step.slower_than(self.stock)
        return segments.recomputed if measured is None else measured

    # What the search asks.

    def candidates(self, batch_size: int, allow: Fidelity | None = None) -> list[Candidate]:
        """Lists every candidate for a batch up to a fidelity, the job's unless told, stock's step first."""
        allow = self.job.allow if allow is None else allow
        return [
            Candidate(
                recipe,
                judge_fidelity(self.job, recipe),
                self.need(recipe, batch_size),
                predict_time(self, recipe, batch_size),
            )
            for recipe in list_recipes(self.job, batch_size, allow)
        ]

    def can_record(self, recipe: Recipe) -> bool:
        """Whether recording a recipe would tell more than is known.

        A GPU's compiler takes minutes for a step in micro-batches, and XLA on the CPU has them in another form.
        """
        if _kind(recipe) in self._steps:
            return False
        return recipe.micro_batch is None or not (self.job.model.jit_compile or self.stock.by_compiler)

    def record(self, recipe: Recipe, batch_size: int) -> None:
        """Records a recipe, if that would tell more."""
        if not self.can_record(recipe):
            return
        kind, batch, segments = _kind(recipe), _recorded_batch(recipe, batch_size), recipe.segments
        step = replace(kind, micro_batch=recipe.micro_batch)
        before = 0 if segments is None else self.need(replace(step, segments=None), batch)
        self._steps[kind] = RecordedStep(self._record(kind, batch), self.job.memory, batch)
        if segments is not None:
            predicted = _predicted(segments, recipe.micro_batch or batch_size)
            self._realised = max(0.0, (before - self.need(step, batch)) / max(predicted, 1))

    def look_at(self, recipe: Recipe, batch_size: int) -> None:
        """Makes the figures of a recorded recipe exact for a batch."""
        step = self._steps.get(_kind(recipe))
        if step is not None:
            step.look_at(_recorded_batch(recipe, batch_size))

    def needed(self, recipe: Recipe, batch_size: int) -> int:
        """The smallest memory in which a recipe fits: what is advised when the job's memory is too small."""
        step = self._steps.get(_kind(recipe))
        if step is None:
            return self.need(recipe, batch_size)
        recorded = _recorded_batch(recipe, batch_size)
        return self.need(recipe, batch_size) - step.need(recorded) + step.needed(recorded)

    def peak(self, recipe: Recipe, batch_size: int) -> tuple[int, int]:
        """Returns the predicted peak of a recipe in the job's memory, and the margin above it."""
        peak, margin = self._peak(recipe, batch_size)
        return min(peak, int(self.job.memory)), margin

    def saving(self, recipe: Recipe, without: Recipe, batch_size: int) -> int:
        """What the peak of one recipe is below that of another, however much memory there is."""
        return self._peak(without, batch_size)[0] - self._peak(recipe, batch_size)[0]

    def _peak(self, recipe: Recipe, batch_size: int) -> tuple[int, int]:
        step, recorded = self._steps.get(_kind(recipe)), _recorded_batch(recipe, batch_size)
        if step is None:  # it has the margin of the stock step that computes as many samples at once
            step, recorded = self.stock, recipe.micro_batch or batch_size
        need = self.need(recipe, batch_size)
        margin = step.need(recorded) - step.peak(recorded)
        filled = 0 if step is self.stock else step.filled(recorded)
        return need - margin + filled, max(0, margin - filled)

    def timeline(self, recipe: Recipe, batch_size: int) -> StepTimeline | None:
        """Returns the predicted memory of a recipe's step; None where it was not recorded."""
        step = self._steps.get(_kind(recipe))
        if step is None:
            return None
        return timeline_of(step.estimate.sketch(_recorded_batch(recipe, batch_size)))

    def _may_run_out_in_update(self) -> bool:
        """Whether an update from all gradients at once may take more than there is, where stock's own does not.

        `fit` applies gradients when all are computed, so that a step that failed can be undone; stock Keras may
        apply each as soon as it is there. Where activations are most of a step, that makes no difference.
        """
        job = self.job
        if not job.updates or self.stock.by_compiler:
            return False
        largest = max(map(size_of, job.model.trainable_variables), default=0)
        kept = self.stock.kept(job.reference_batch)
        return kept + self.gradients + _IN_UPDATE * largest > job.memory

    def _choose_lever_to_undo(self, recipe: Recipe) -> Lever:
        """Chooses the lever without which most is known: recorded if possible, otherwise the last in the list."""
        used = [lever for lever in reversed(LEVERS) if lever.is_used(recipe)]
        for lever in used:
            if _kind(lever.undo(recipe)) == _kind(recipe):  # it is not part of what is recorded
                return lever
        return next((lever for lever in used if _kind(lever.undo(recipe)) in self._steps), used[0])


def _kind(recipe: Recipe) -> Recipe:
    """What of a recipe is recorded: a step in micro-batches of any size, wherever its inputs come from."""
    parts = None if recipe.micro_batch is None else RECORDED_PARTS
    return replace(recipe, micro_batch=parts, inputs_on_host=False, validation_batch=None)


def _recorded_batch(recipe: Recipe, batch_size: int) -> int:
    """The batch of a recorded step in which as many samples pass at once as a recipe lets pass of a batch."""
    return batch_size if recipe.micro_batch is None else RECORDED_PARTS * recipe.micro_batch


def _predicted(segments: Segments, batch_size: int) -> int:
    """What segments save by their own prediction: it grows with the samples that pass at once."""
    return (segments.stock_bytes - segments.activation_bytes) * batch_size // segments.batch_size
