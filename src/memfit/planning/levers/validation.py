"""Smaller validation batches: a validation batch in slices, with the same metrics."""

from dataclasses import replace

from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.levers.lever import Lever
from memfit.steps.recipe import Recipe


class ValidationSlices(Lever):
    """Evaluates a validation batch in slices; the search sets the size when the training's recipe is chosen."""

    name = "smaller validation batches"
    always = Fidelity.EXACT  # metrics add up over slices
    sentence = "a whole validation batch would not fit"

    def why_not(self, job: Job) -> str | None:
        """There has to be a validation."""
        return "not needed" if job.validation_batch_size is not None else "there is no validation"

    def undo(self, recipe: Recipe) -> Recipe:
        """Validates whole batches."""
        return replace(recipe, validation_batch=None)

    def describe(self, recipe: Recipe, batch_size: int) -> str:
        """Says how many samples at once."""
        return f"slices of {recipe.validation_batch}"
