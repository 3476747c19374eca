"""Mixed precision: activations in 16 bits."""

from collections.abc import Iterator
from dataclasses import replace

from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.levers.lever import Facts, Lever
from memfit.steps.precision import MixedPrecision, choose_policy, why_not_lowered
from memfit.steps.recipe import Recipe

# What of the activations 16 bits save: nearly half; normalisations compute in float32 inside, and the weights are
# cast beside their float32 selves. Only until the step is recorded.
_SAVED_OF_ACTIVATIONS = 0.4


class LoweredPrecision(Lever):
    """Lets layers compute in 16 bits; weights stay float32."""

    name = "mixed precision"
    always = Fidelity.PRECISION  # other number formats
    sentence = "activations in 16 bits, weights in 32"

    def why_not(self, job: Job) -> str | None:
        """Says why the model cannot be lowered."""
        return why_not_lowered(job.model)

    def offer(self, job: Job, recipe: Recipe, batch_size: int) -> Iterator[Recipe]:
        """Offers bfloat16, but float16 where the GPU does not have it."""
        yield replace(recipe, changes=(*recipe.changes, MixedPrecision(choose_policy(job.device))))

    def undo(self, recipe: Recipe) -> Recipe:
        """Computes in the model's own precision."""
        changes = tuple(change for change in recipe.changes if not isinstance(change, MixedPrecision))
        return replace(recipe, changes=changes)

    def describe(self, recipe: Recipe, batch_size: int) -> str:
        """Names the policy."""
        return ", ".join(str(change) for change in recipe.changes if isinstance(change, MixedPrecision))

    def predict_saving(self, facts: Facts, recipe: Recipe, batch_size: int) -> int:
        """A share of the activations that are left."""
        size = recipe.micro_batch or batch_size
        saved = 0 if recipe.segments is None else facts.saved_by_segments(recipe.segments, size)
        return int(_SAVED_OF_ACTIVATIONS * max(facts.activations(size) - saved, 0))
