"""The plan of a call of `fit`: made where none was given, as far as that can be, and checked where one was."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import keras
import numpy as np

from memfit.compat import keras_data
from memfit.data.peeking import FirstBatch, is_generator
from memfit.errors import CannotTell, InvalidInput, MemfitError, ProcessDied, StepFailed, in_one_line
from memfit.estimation.worst_batch import leaves_open, look_where_needed
from memfit.planning.fidelity import Fidelity
from memfit.planning.fingerprint import fingerprint
from memfit.planning.layer_names import layer_names, with_names_of
from memfit.planning.plan import Plan
from memfit.planning.planning import plan as make_plan
from memfit.steps.installing import why_not_micro_batches, why_not_rematerialised
from memfit.steps.micro_batches.additivity import find_loss_difference
from memfit.steps.recipe import Recipe
from memfit.training.batches import batch_size_of
from memfit.training.guard.events import Journal
from memfit.training.running import current_runner

# What is known to have no plan: the data or the model does not tell enough, or the step was recorded in vain.
_UNPLANNABLE = (CannotTell, StepFailed, ProcessDied)
_REMEDY = "Make a plan for this model, with memfit.plan"


def choose_plan(
    model: keras.Model,
    arguments: Mapping[str, Any],
    first: FirstBatch | None,
    memory: int | str | None,
    allow: str,
    journal: Journal,
    together: Mapping[str, Any],
) -> Plan | None:
    """Returns a plan for a call of `fit`; None where none can be made, and the training is stock Keras's.

    A bug in memfit must not keep a model from training, nor stay hidden: it is a warning for users, and an error
    in tests, under `memfit run --strict`, and where a memory was asked for.

    Args:
        together: What `plan` has to know of the processes that train together, as its arguments.

    Raises:
        DoesNotFit: If no allowed plan fits.
        InvalidInput: If an argument is invalid.
        CannotTell: If a memory was asked for, and not enough is known to plan for it.
        StepFailed: The same, where the step fails on synthetic data.
        ProcessDied: The same, where the process that records it is ended.
    """
    runner = current_runner()

    def make(room: int | str | None) -> Plan:
        data, samples = _look(model, arguments, first)
        validation = validation_batch_of(arguments, samples)
        return make_plan(model, samples, room, allow, data=data, validation_batch_size=validation, **together)

    try:
        with runner.teller(arguments).progress():
            plan = runner.plan(model, memory, make)
        if is_generator(arguments["x"]) and leaves_open(model):
            journal.note("Planned for batches like the first one: a generator yields each batch only once.")
        return plan
    except _UNPLANNABLE as error:
        # A script under `memfit run` knows nothing of memfit, and could not tell it more.
        if memory is not None and not runner.restarts:
            raise
        why = in_one_line(error)
        journal.note(f"Trained as stock Keras, because no plan could be made: {why}", warn=memory is not None)
    except MemfitError:  # what the user can mend: no allowed plan fits, an argument is invalid
        raise
    except Exception as error:
        if (
            runner.strict
            or "PYTEST_CURRENT_TEST" in os.environ
            or (memory is not None and not runner.restarts)
        ):
            raise
        journal.note(
            f"Trained as stock Keras, because planning failed ({in_one_line(error)}). "
            "This is a bug in memfit, please report it.",
            warn=True,
            bug=error,
        )
    return None


def example_of(arguments: Mapping[str, Any], first: FirstBatch | None) -> Any:
    """Returns the data of a call of `fit` as `estimate` and `plan` take it.

    Args:
        arguments: The arguments by name; those that are missing are None.
        first: The first batch, where it could be had.
    """
    x, weight = arguments.get("x"), arguments.get("sample_weight")
    if keras_data.batches_itself(x):
        return first or x
    if weight is None and arguments.get("class_weight"):
        weight = np.ones(1, "float32")  # Keras makes a sample weight of every class weight
    return x, arguments.get("y"), weight


def validation_batch_of(arguments: Mapping[str, Any], batch_size: int) -> int | None:
    """Returns how many samples Keras validates with at once; None where a call of `fit` has no validation.

    Args:
        arguments: The arguments by name; those that are missing are None.
        batch_size: Samples in a step.
    """
    if arguments.get("validation_data") is None and not arguments.get("validation_split"):
        return None
    return int(arguments.get("validation_batch_size") or batch_size)


def _look(model: keras.Model, arguments: Mapping[str, Any], first: FirstBatch | None) -> tuple[Any, int]:
    """Returns the data as `plan` takes it, where shapes may vary those of all its batches, and the batch size."""
    x, batch_size = arguments["x"], arguments["batch_size"]
    if not is_generator(x):
        try:
            shapes = look_where_needed(model, x, careful=True)
        except CannotTell:
            batch_size_of(x, batch_size, first)  # which says it where that alone is not known
            raise
        if shapes is not None:
            return shapes, max(shape[0][0] for shape in shapes.seen)
    return example_of(arguments, first), batch_size_of(x, batch_size, first)


def suited(model: keras.Model, plan: Plan) -> Plan:
    """Returns the plan with this model's names for layers that Keras numbered otherwise.

    Raises:
        InvalidInput: If it was made for another model, or this one cannot follow it.
    """
    if plan.model != fingerprint(model):
        raise InvalidInput(
            "A plan can only be used with the model it was made for: the same layers, weights and optimizer",
            received=f"a plan for model {plan.model}, and model {fingerprint(model)}",
            remedy=_REMEDY,
        )
    recipe = plan.recipe
    reason = None if recipe.micro_batch is None else why_not_micro_batches(model)
    if reason is None and recipe.segments is not None:
        reason = why_not_rematerialised(model)
    if reason is not None:
        raise InvalidInput(
            f"The plan changes how a step is computed, but this model's step cannot be changed: {reason}",
            remedy=_REMEDY,
        )
    if not plan.layer_names:
        return plan

    def renamed(recipe: Recipe) -> Recipe:
        if recipe.segments is None:
            return recipe
        return replace(recipe, segments=with_names_of(model, recipe.segments, plan.layer_names))

    ordinary = plan.ordinary and replace(plan.ordinary, recipe=renamed(plan.ordinary.recipe))
    return replace(plan, recipe=renamed(plan.recipe), ordinary=ordinary, layer_names=layer_names(model))


def check_losses(model: keras.Model, plan: Plan, data: Any, journal: Journal) -> None:
    """Refuses micro-batches under an exact plan where a loss that the user wrote does not add up from them.

    Args:
        data: Some samples, or None where reading some would change the rest: then the plan's word is taken.
        journal: Where it is noted if the plan is not exact.
    """
    if plan.recipe.micro_batch is None or data is None:
        return
    story = find_loss_difference(model, data)
    if story is None:
        return
    if plan.fidelity == Fidelity.EXACT:
        raise InvalidInput(
            "Micro-batches are exact only for a loss that is a mean over the samples",
            received=story,
            remedy="Return a loss for each sample (or add a mean over the samples), or allow near",
        )
    journal.note(f"The loss is that of micro-batches, not of the batch: {story}.")
