"""Adafactor without its velocity: the same numbers, computed again instead of kept."""

from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.levers.lever import Facts
from memfit.planning.levers.lighter_state import LighterOptimizer
from memfit.steps.recipe import Recipe


class AdafactorVelocity(LighterOptimizer):
    """Lets Keras's Adafactor update as `memfit.optimizers.Adafactor` does."""

    name = "adafactor velocity"
    form = "no velocity"

    def fidelity(self, job: Job) -> Fidelity:
        """The same update, bit by bit: exact."""
        return Fidelity.EXACT

    def explain(self, job: Job, batch_size: int) -> str:
        """Says what is not kept."""
        return "Keras keeps a copy of the weights that every step computes again and never reads"

    def predict_saving(self, facts: Facts, recipe: Recipe, batch_size: int) -> int:
        """As much as the gradients: nearly all of them are those of matrices."""
        return facts.gradients
