"""The steps that a plan describes."""

from dataclasses import replace
from typing import Any

import keras

from memfit.errors import InvalidInput
from memfit.planning.fidelity import Fidelity
from memfit.planning.fingerprint import fingerprint
from memfit.planning.layer_names import layer_names, with_names_of
from memfit.planning.plan import Plan
from memfit.steps.installing import why_not_micro_batches, why_not_rematerialised
from memfit.steps.micro_batches.additivity import find_loss_difference
from memfit.steps.recipe import Recipe


def check_plan(model: keras.Model, plan: Plan) -> None:
    """Refuses a plan that was made for another model, or that this one cannot follow."""
    if plan.model != fingerprint(model):
        raise InvalidInput(
            "A plan can only be used with the model it was made for: the same layers, weights and optimizer",
            received=f"a plan for model {plan.model}, and model {fingerprint(model)}",
            remedy="Make a plan for this model, with memfit.plan",
        )
    recipe = plan.recipe
    reason = None if recipe.micro_batch is None else why_not_micro_batches(model)
    if reason is None and recipe.segments is not None:
        reason = why_not_rematerialised(model)
    if reason is not None:
        raise InvalidInput(
            f"The plan changes how a step is computed, but this model's step cannot be changed: {reason}",
            remedy="Make a plan for this model, with memfit.plan",
        )


def suited(model: keras.Model, plan: Plan) -> Plan:
    """Returns the plan with this model's names for layers that Keras numbered otherwise, after `check_plan`."""
    check_plan(model, plan)
    if not plan.layer_names:
        return plan

    def renamed(recipe: Recipe) -> Recipe:
        if recipe.segments is None:
            return recipe
        return replace(recipe, segments=with_names_of(model, recipe.segments, plan.layer_names))

    ordinary = plan.ordinary and replace(plan.ordinary, recipe=renamed(plan.ordinary.recipe))
    return replace(plan, recipe=renamed(plan.recipe), ordinary=ordinary, layer_names=layer_names(model))


def check_losses(model: keras.Model, plan: Plan, data: Any) -> tuple[str, ...]:
    """Refuses micro-batches under an exact plan where a loss that the user wrote does not add up from them.

    Args:
        data: Some samples, or None where reading some would change the rest: then the plan's word is taken.

    Returns:
        What is to be said, as sentences.
    """
    if plan.recipe.micro_batch is None or data is None:
        return ()
    story = find_loss_difference(model, data)
    if story is None:
        return ()
    if plan.fidelity == Fidelity.EXACT:
        raise InvalidInput(
            "Micro-batches are exact only for a loss that is a mean over the samples",
            received=story,
            remedy="Return a loss for each sample (or add a mean over the samples), or allow near",
        )
    return (f"The loss is that of micro-batches, not of the batch: {story}.",)
