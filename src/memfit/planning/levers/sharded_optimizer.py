"""The optimizer's state dealt out to ranks: each keeps and updates a part (ZeRO stage 1)."""

from collections.abc import Iterator
from dataclasses import replace

from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.levers.lever import Facts, Lever
from memfit.planning.optimizer_sizes import kept_by
from memfit.sizes import Size
from memfit.steps.recipe import Recipe
from memfit.steps.sharded_state import ShardedState, deal_out, why_not_sharded
from memfit.steps.slots import innermost


class ShardedOptimizer(Lever):
    """Lets each of several ranks keep the state of some weights, update those, and send them to the others."""

    name = "sharded optimizer"
    always = Fidelity.EXACT  # the same update from the same gradients
    of_ranks = True

    def explain(self, job: Job) -> str:
        """Says what a rank keeps, and what that costs."""
        return (
            f"each of {job.ranks} ranks keeps a part of the optimizer's state; sending weights takes as long again "
            "as adding up gradients, and a rank that is lost costs the epoch"
        )

    def why_not(self, job: Job) -> str | None:
        """It has to be asked for, because a lost rank then costs more than a batch."""
        if (reason := why_not_sharded(job.model)) is not None:
            return reason
        if not job.shard_optimizer:
            return f"not asked for (--shard-optimizer): it would save {self.count_saved(job)} on each rank"
        return None

    def offer(self, job: Job, recipe: Recipe, batch_size: int) -> Iterator[Recipe]:
        """Offers any recipe with it."""
        yield replace(recipe, changes=(*recipe.changes, ShardedState(job.ranks, int(self.count_saved(job)))))

    def undo(self, recipe: Recipe) -> Recipe:
        """Lets every rank keep all of the state."""
        changes = tuple(change for change in recipe.changes if not isinstance(change, ShardedState))
        return replace(recipe, changes=changes)

    def describe(self, recipe: Recipe, batch_size: int) -> str:
        """Says in how many parts the state is."""
        return next(f"1/{change.ranks} each" for change in recipe.changes if isinstance(change, ShardedState))

    def predict_saving(self, facts: Facts, recipe: Recipe, batch_size: int) -> int:
        """What the rank that keeps most does not keep."""
        return next(change.saves for change in recipe.changes if isinstance(change, ShardedState))

    def count_saved(self, job: Job) -> Size:
        """Returns the bytes of the state that the rank with the largest part of it does not keep."""
        weights, optimizer = job.model.trainable_variables, innermost(job.model.optimizer)
        owners = deal_out(weights, job.ranks)
        parts = [
            kept_by(
                optimizer, [weight for weight, owner in zip(weights, owners, strict=True) if owner == rank]
            )
            for rank in range(job.ranks)
        ]
        return Size(sum(parts) - max(parts))
