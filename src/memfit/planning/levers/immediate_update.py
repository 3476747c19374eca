"""Immediate updates: Keras's own step, which keeps no gradients until an update, and cannot be rolled back."""

from collections.abc import Iterator
from dataclasses import replace

from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.levers.lever import Lever
from memfit.steps.recipe import Recipe


class ImmediateUpdate(Lever):
    """Updates each weight as soon as its gradient is there.

    A guarded step keeps all gradients until it updates, so that it can be rolled back before and finished after.
    Where weights are most of a training, that is a copy of them that may not fit.
    """

    name = "immediate updates"
    always = Fidelity.EXACT  # the same update from the same gradients
    sentence = "gradients are applied at once, as in stock Keras; a step that runs out cannot be rolled back"

    def why_not(self, job: Job) -> str | None:
        """Says why the update cannot be moved."""
        if job.model.jit_compile:
            return "XLA compiles the step, and updates as soon as it can"
        if job.ranks > 1:
            return "the gradients of all ranks are added up before any is applied"
        return job.fixed_step

    def offer(self, job: Job, recipe: Recipe, batch_size: int) -> Iterator[Recipe]:
        """Offers it for whole steps; what adds gradients up, or keeps few activations, has them anyway."""
        if recipe.micro_batch is None and recipe.segments is None:
            yield replace(recipe, immediate_update=True)

    def undo(self, recipe: Recipe) -> Recipe:
        """Updates when all gradients are there."""
        return replace(recipe, immediate_update=False)

    def describe(self, recipe: Recipe, batch_size: int) -> str:
        """Says when weights are updated."""
        return "as gradients come"
