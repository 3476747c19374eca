"""Rematerialisation (activation checkpointing): activations are computed again in the backward pass."""

from collections.abc import Iterator
from dataclasses import replace

from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.levers.lever import Facts, Lever
from memfit.steps.recipe import Recipe
from memfit.steps.rematerialisation import Segments

# A tighter choice has to keep less than this share of what the present one keeps.
_WORTH = 0.95


class Rematerialisation(Lever):
    """Keeps fewer activations for the backward pass, and computes the others again."""

    name = "rematerialisation"
    always = Fidelity.EXACT  # the same ops on the same values
    sentence = "the least recomputation that is known to fit"
    of_any_step = True

    def why_not(self, job: Job) -> str | None:
        """Says why nothing can be computed again."""
        return job.segment_choices[1]

    def offer(self, job: Job, recipe: Recipe, batch_size: int) -> Iterator[Recipe]:
        """Offers every choice of segments; for a GPU's compiler also the last one with large convolutions split."""
        choices = job.segment_choices[0]
        for segments in choices:
            yield replace(recipe, segments=segments)
        if choices and job.is_compiled:
            yield replace(recipe, segments=replace(choices[-1], split_convolutions=True))

    def undo(self, recipe: Recipe) -> Recipe:
        """Keeps everything."""
        return replace(recipe, segments=None)

    def describe(self, recipe: Recipe, batch_size: int) -> str:
        """Says how many segments."""
        if recipe.segments is None:
            return ""
        split = ", large convolutions in slices of the batch" if recipe.segments.split_convolutions else ""
        count = recipe.segments.count
        return f"{count} segment{'s' if count > 1 else ''}{split}"

    def predict_saving(self, facts: Facts, recipe: Recipe, batch_size: int) -> int:
        """What the segments predict, which grows with the samples that pass at once."""
        if recipe.segments is None:
            return 0
        return facts.saved_by_segments(recipe.segments, recipe.micro_batch or batch_size)

    def predict_cost(self, facts: Facts, recipe: Recipe, batch_size: int) -> float:
        """The time of what is computed again."""
        return 0.0 if recipe.segments is None else facts.recomputed(recipe.segments)

    def tighten(self, job: Job, recipe: Recipe, batch_size: int, share: float) -> Recipe | None:
        """Returns the least recomputation that keeps at most so small a share of the present activations."""
        now = 1.0 if recipe.segments is None else _kept(recipe.segments)
        tighter = [segments for segments in job.segment_choices[0] if _kept(segments) < _WORTH * now]
        small_enough = [segments for segments in tighter if _kept(segments) <= share * now]
        if not tighter:
            return None
        return replace(recipe, segments=small_enough[0] if small_enough else tighter[-1])


def _kept(segments: Segments) -> float:
    """The share of the stock step's activations that segments keep."""
    return segments.activation_bytes / segments.stock_bytes
