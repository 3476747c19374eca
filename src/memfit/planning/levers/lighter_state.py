"""What the optimizer keeps, in a lighter form while it trains: Adam in 8 bits, Adafactor without its velocity."""

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.levers.lever import Facts, Lever
from memfit.steps.lighter_state import LighterState, why_not_lighter
from memfit.steps.recipe import Recipe
from memfit.steps.sharded_state import ShardedState

# What a large weight's moments save of their bytes: 2 bytes and two scales a block of 256, instead of 8.
_SAVED = 0.746
# What rounding adds to a step (`make bench-optimizers`).
_COST = 0.03


class LighterOptimizer(Lever):
    """Lets the user's own optimizer keep less for the length of a training; a subclass says in which form."""

    form: ClassVar[str]
    of_optimizer = True

    def why_not(self, job: Job) -> str | None:
        """Says why this optimizer cannot keep its state so."""
        return why_not_lighter(job.model, self.form)

    def offer(self, job: Job, recipe: Recipe, batch_size: int) -> Iterator[Recipe]:
        """Offers any recipe with it, unless ranks keep a part of the state each."""
        if any(isinstance(change, ShardedState) for change in recipe.changes):
            return
        yield replace(recipe, changes=(*recipe.changes, LighterState(self.form)))

    def undo(self, recipe: Recipe) -> Recipe:
        """Lets the optimizer keep all it has."""
        changes = tuple(change for change in recipe.changes if change != LighterState(self.form))
        return replace(recipe, changes=changes)

    def describe(self, recipe: Recipe, batch_size: int) -> str:
        """Names the form."""
        return self.form


class AdafactorVelocity(LighterOptimizer):
    """Lets Keras's Adafactor update as `memfit.optimizers.Adafactor` does."""

    name = "adafactor velocity"
    always = Fidelity.EXACT  # the same update, bit by bit
    sentence = "Keras keeps a copy of the weights that every step computes again and never reads"
    form = "no velocity"

    def predict_saving(self, facts: Facts, recipe: Recipe, batch_size: int) -> int:
        """As much as the gradients: nearly all of them are those of matrices."""
        return facts.gradients


class EightBitMoments(LighterOptimizer):
    """Lets Keras's Adam or AdamW update as `memfit.optimizers.Adam8bit` does."""

    name = "8-bit moments"
    always = Fidelity.PRECISION  # other number formats
    form = "8-bit moments"

    def explain(self, job: Job) -> str:
        """Says what it does to the optimizer, and until when."""
        name = type(job.model.optimizer).__name__
        return f"{name} keeps its moments in 8 bits during training, and in float32 again afterwards"

    def predict_saving(self, facts: Facts, recipe: Recipe, batch_size: int) -> int:
        """Three quarters of both moments."""
        return int(2 * _SAVED * facts.gradients)

    def predict_cost(self, facts: Facts, recipe: Recipe, batch_size: int) -> float:
        """Rounding."""
        return _COST
