"""Inputs on the host: a step takes only the samples that it computes."""

from collections.abc import Iterator
from dataclasses import replace

from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.levers.lever import Facts, Lever
from memfit.steps.host_arrays import why_not_host_arrays
from memfit.steps.recipe import Recipe

# Copying the samples when they are wanted, not ahead of time: below what can be measured for an image network.
_COST = 0.005


class HostInputs(Lever):
    """Leaves the user's arrays on the host."""

    name = "inputs on the host"
    always = Fidelity.EXACT  # the same samples in the same order
    sentence = "each step reads its samples from your arrays"

    def why_not(self, job: Job) -> str | None:
        """Says why the samples cannot be taken from the host as they are needed."""
        if job.is_compiled:
            return "a step compiled by XLA cannot read from the host"
        return why_not_host_arrays(job.model, job.data)

    def see_in_data(self, job: Job) -> str | None:
        """Whether there are arrays."""
        return self.why_not(job)

    def offer(self, job: Job, recipe: Recipe, batch_size: int) -> Iterator[Recipe]:
        """Offers any recipe with its inputs on the host."""
        yield replace(recipe, inputs_on_host=True)

    def undo(self, recipe: Recipe) -> Recipe:
        """Lets Keras feed whole batches."""
        return replace(recipe, inputs_on_host=False)

    def describe(self, recipe: Recipe, batch_size: int) -> str:
        """Says how they are read."""
        return "read as needed"

    def predict_saving(self, facts: Facts, recipe: Recipe, batch_size: int) -> int:
        """What waits on the device: in Keras's pipeline, and in a batch whose parts are computed one by one."""
        size = recipe.micro_batch or batch_size
        return facts.waiting(batch_size) + facts.inputs * (batch_size - size)

    def predict_cost(self, facts: Facts, recipe: Recipe, batch_size: int) -> float:
        """Copying samples."""
        return _COST
