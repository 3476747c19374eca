"""What the optimizer keeps, in a lighter form while it trains: Adam in 8 bits, Adafactor without its velocity."""

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from memfit.planning.job import Job
from memfit.planning.levers.lever import Lever
from memfit.steps.lighter_state import LighterState, why_not_lighter
from memfit.steps.recipe import Recipe
from memfit.steps.sharded_state import ShardedState


class LighterOptimizer(Lever):
    """Lets the user's own optimizer keep less for the length of a training; a subclass says in which form."""

    form: ClassVar[str]

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
