"""The steps that a plan describes."""

from dataclasses import replace
from typing import Any

import keras

from memfit.errors import InvalidInput
from memfit.planning.fidelity import Fidelity
from memfit.planning.fingerprint import fingerprint
from memfit.planning.layer_names import layer_names, with_names_of
from memfit.planning.plan import Plan
from memfit.steps.installing import why_not_micro_batches, why_step_is_fixed
from memfit.steps.micro_batches.additivity import agree, has_to_be_checked, losses_whole_and_in_parts
from memfit.steps.recipe import Recipe


def check_plan(model: keras.Model, plan: Plan) -> None:
    """Refuses a plan that was made for another model, or that this one cannot follow."""
    if plan.model != fingerprint(model):
        raise InvalidInput(
            "A plan is applied to the model it was made for: the same layers, weights and optimizer",
            received=f"a plan for model {plan.model}, and model {fingerprint(model)}",
            remedy="Make a plan for this model, with memfit.plan",
        )
    recipe = plan.recipe
    reason = None if recipe.micro_batch is None else why_not_micro_batches(model)
    if reason is None and recipe.segments is not None:
        reason = why_step_is_fixed(model)
    if reason is not None:
        raise InvalidInput(
            f"The plan changes how a step is computed, and this model's cannot be changed: {reason}",
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
        data: Some samples, or None where none can be had.

    Returns:
        What had to be assumed, as sentences.
    """
    if plan.recipe.micro_batch is None or not has_to_be_checked(model):
        return ()
    losses = None if data is None else losses_whole_and_in_parts(model, data)
    if losses is None:
        return (
            "Losses that layers add or that are custom were taken for means over the samples, unchecked.",
        )
    if agree(*losses):
        return ()
    story = f"a few samples have a loss of {losses[0]:.4g} at once and {losses[1]:.4g} in parts"
    if plan.fidelity == Fidelity.EXACT:
        raise InvalidInput(
            "Micro-batches are exact only for a loss that is a mean over the samples",
            received=story,
            remedy="Return a loss for each sample (or add a mean over the samples), or allow near",
        )
    return (f"The loss is that of micro-batches, not of the batch: {story}.",)
