"""What recordings have shown of a job's step, and what follows for recipes and batches that were not recorded."""

import math
from collections.abc import Callable
from dataclasses import replace

from memfit.errors import StepFailed, in_one_line
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
        # What segments were predicted to save too much, for each sample, as the last recording has shown.
        self._missed = 0.0
        self._activations: dict[int, int] = {}
        # What the user's code raised under levers, by their names.
        self._failures: dict[frozenset[str], str] = {}
        self.stock = RecordedStep(record(None, job.reference_batch), job.reference_batch)
        # Keras's own step updates weights as their gradients come; the guarded one keeps them until all are there.
        self._steps = {Recipe(immediate_update=True): [self.stock]}
        if self.stock.by_compiler or not job.is_guarded:
            self._steps[Recipe()] = [self.stock]

    # What levers and candidates ask.

    def need(self, recipe: Recipe, batch_size: int) -> int:
        """What a step takes with its margin, and with the samples that wait on the device beside it.

        What was not recorded follows from what was, lever by lever.
        """
        step = self._find_step(recipe, batch_size)
        if step is not None and self._kind(recipe).inputs_on_host == recipe.inputs_on_host:
            recorded, room = _recorded_batch(recipe, batch_size), self._room(recipe, batch_size)
            return step.need(recorded, room) + self._beside(recipe, batch_size)
        lever = self._choose_lever_to_undo(recipe)
        return self.need(lever.undo(recipe), batch_size) - lever.predict_saving(self, recipe, batch_size)

    def activations(self, batch_size: int) -> int:
        if batch_size not in self._activations:
            self._activations[batch_size] = self.stock.activations(batch_size)
        return self._activations[batch_size]

    def waiting(self, batch_size: int) -> int:
        """What Keras's input pipeline holds in the device's memory."""
        return self.stock.estimate.waiting.at(batch_size)

    def fixed_time(self, batch_size: int) -> float:
        return self.stock.estimate.made_from.fixed_part(batch_size)

    def saved_by_segments(self, segments: Segments, batch_size: int) -> int:
        """What segments save by their own prediction, less what the last recording showed to be missing."""
        return max(0, _predicted(segments, batch_size) - int(self._missed * batch_size))

    def recomputed(self, segments: Segments) -> float:
        """The extra time of segments: by the kernels that a GPU's compiler made of them, where it was asked."""
        steps = self._steps.get(Recipe(segments=segments))
        measured = None if steps is None else steps[-1].slower_than(self.stock)
        return segments.recomputed if measured is None else measured

    # What the search asks.

    def candidates(self, batch_size: int, allow: Fidelity | None = None) -> list[Candidate]:
        """Lists every candidate for a batch up to a fidelity, the job's unless told, stock's step first."""
        allow = self.job.allow if allow is None else allow
        recipes = list_recipes(self.job, batch_size, allow)
        return [self.candidate(recipe, batch_size) for recipe in recipes if self.failure(recipe) is None]

    def failure(self, recipe: Recipe) -> str | None:
        """Returns what the step was seen to raise under some of a recipe's levers, or None."""
        used = _levers_of(recipe)
        return next((text for failed, text in self._failures.items() if failed <= used), None)

    def candidate(self, recipe: Recipe, batch_size: int) -> Candidate:
        """Returns a recipe for a batch with all that is known of it."""
        recorded, largest = not self._can_record(recipe, batch_size), self._largest_recorded(recipe)
        return Candidate(
            recipe,
            judge_fidelity(self.job, recipe),
            self.need(recipe, batch_size),
            predict_time(self, recipe, batch_size),
            recorded=recorded,
            bounded=recorded or _recorded_batch(recipe, batch_size) <= largest,
        )

    def record(self, recipe: Recipe, batch_size: int) -> None:
        """Records a recipe, if that would tell more; where its step fails, it is no candidate any more.

        Raises:
            StepFailed: If it is the step with nothing changed that fails.
        """
        if not self._can_record(recipe, batch_size):
            return
        kind, batch, segments = self._kind(recipe), _recorded_batch(recipe, batch_size), recipe.segments
        step = replace(kind, micro_batch=recipe.micro_batch)
        before = 0 if segments is None else self.need(replace(step, segments=None), batch)
        try:
            recorded = RecordedStep(self._record(kind, batch), batch)
        except StepFailed as failure:  # as of code that does not compute in 16 bits
            if not _levers_of(recipe):
                raise
            self._failures[_levers_of(recipe)] = in_one_line(failure)
            return
        self._steps.setdefault(kind, []).append(recorded)
        if segments is not None:
            samples = recipe.micro_batch or batch_size
            saved = before - self.need(step, batch)
            self._missed = (_predicted(segments, samples) - saved) / samples

    def look_at(self, recipe: Recipe, batch_size: int) -> None:
        """Makes the figures of a recorded recipe exact for a batch."""
        step = self._find_step(recipe, batch_size)
        if step is not None:
            step.look_at(_recorded_batch(recipe, batch_size), self._room(recipe, batch_size))

    def needed(self, recipe: Recipe, batch_size: int) -> int:
        """The smallest memory in which a recipe fits: what is advised when the job's memory is too small."""
        step = self._find_step(recipe, batch_size)
        if step is None:
            return self.need(recipe, batch_size)
        recorded = _recorded_batch(recipe, batch_size)
        of_step = step.need(recorded, self._room(recipe, batch_size))
        return self.need(recipe, batch_size) - of_step + step.needed(recorded)

    def peak(self, recipe: Recipe, batch_size: int) -> tuple[int, int]:
        """Returns the predicted peak of a recipe in the job's memory, and the margin above it."""
        peak, margin = self._peak(recipe, batch_size)
        return min(peak, int(self.job.memory)), margin

    def saving(self, recipe: Recipe, without: Recipe, batch_size: int) -> int:
        """What the peak of one recipe is below that of another, however much memory there is."""
        return self._peak(without, batch_size)[0] - self._peak(recipe, batch_size)[0]

    def _peak(self, recipe: Recipe, batch_size: int) -> tuple[int, int]:
        step, recorded = self._find_step(recipe, batch_size), _recorded_batch(recipe, batch_size)
        if step is None:  # it has the margin of the stock step that computes as many samples at once
            step, recorded = self.stock, recipe.micro_batch or batch_size
        need, room = self.need(recipe, batch_size), self._room(recipe, batch_size)
        margin = step.need(recorded, room) - step.peak(recorded)
        filled = step.filled(recorded, room)
        return need - margin + filled, max(0, margin - filled)

    def timeline(self, recipe: Recipe, batch_size: int) -> StepTimeline | None:
        """Returns the predicted memory of a recipe's step; None where it was not recorded."""
        step = self._find_step(recipe, batch_size)
        if step is None:
            return None
        return timeline_of(step.estimate.sketch(_recorded_batch(recipe, batch_size)))

    def _beside(self, recipe: Recipe, batch_size: int) -> int:
        """What waits on the device beside a step: nothing where it reads its samples from the host."""
        if recipe.inputs_on_host:
            return 0
        # Of a recorded batch, the samples that are not in the part being computed wait as well.
        return self.inputs * (batch_size - _recorded_batch(recipe, batch_size)) + self.waiting(batch_size)

    def _room(self, recipe: Recipe, batch_size: int) -> int:
        """What the job's memory leaves for a step itself."""
        return self.job.memory - self._beside(recipe, batch_size)

    def _find_step(self, recipe: Recipe, batch_size: int) -> RecordedStep | None:
        """Finds the recorded step of a recipe with the nearest batch; at first stock's for the guarded one."""
        steps = self._steps.get(self._kind(recipe))
        if steps is None:
            return self.stock if self._kind(recipe) == Recipe() else None
        batch = _recorded_batch(recipe, batch_size)
        nearest = min(steps, key=lambda step: abs(math.log(step.estimate.batch_size / batch)))
        return nearest if recipe.micro_batch is None else nearest.within(batch_size)

    def _largest_recorded(self, recipe: Recipe) -> int:
        """Returns the largest batch for which a recipe was recorded; 0 for none."""
        return max((step.estimate.batch_size for step in self._steps.get(self._kind(recipe), ())), default=0)

    def _kind(self, recipe: Recipe) -> Recipe:
        """What of a recipe is recorded: a step in micro-batches of any size.

        A GPU's compiler does not see where the samples come from.
        """
        parts = None if recipe.micro_batch is None else RECORDED_PARTS
        on_host = recipe.inputs_on_host and not self.stock.by_compiler
        return replace(recipe, micro_batch=parts, inputs_on_host=on_host, validation_batch=None)

    def _can_record(self, recipe: Recipe, batch_size: int) -> bool:
        """Whether recording a recipe for a batch would tell more than is known.

        A GPU's compiler takes minutes for a step in micro-batches, and XLA on the CPU has them in another form.
        """
        if self._kind(recipe) in self._steps:
            step = self._find_step(recipe, batch_size)
            return step is not None and not step.estimate.speaks_for(_recorded_batch(recipe, batch_size))
        return recipe.micro_batch is None or not (self.job.model.jit_compile or self.stock.by_compiler)

    def _choose_lever_to_undo(self, recipe: Recipe) -> Lever:
        """Chooses the lever without which most is known: recorded if possible, otherwise the last in the list."""
        used = [lever for lever in reversed(LEVERS) if lever.is_used(recipe)]
        for lever in used:
            if self._kind(lever.undo(recipe)) == self._kind(recipe):  # it is not part of what is recorded
                return lever
        return next((lever for lever in used if self._kind(lever.undo(recipe)) in self._steps), used[0])


def _levers_of(recipe: Recipe) -> frozenset[str]:
    return frozenset(lever.name for lever in LEVERS if lever.is_used(recipe))


def _recorded_batch(recipe: Recipe, batch_size: int) -> int:
    """The batch of a recorded step in which as many samples pass at once as a recipe lets pass of a batch."""
    return batch_size if recipe.micro_batch is None else RECORDED_PARTS * recipe.micro_batch


def _predicted(segments: Segments, batch_size: int) -> int:
    """What segments save by their own prediction: it grows with the samples that pass at once."""
    return (segments.stock_bytes - segments.activation_bytes) * batch_size // segments.batch_size
