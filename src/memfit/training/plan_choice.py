"""The plan of a call of `fit` that was given none: what can be planned is, and the rest trains as stock Keras."""

import os
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from memfit.compat import keras_data
from memfit.data.peeking import FirstBatch, is_generator
from memfit.data.shapes import Shapes
from memfit.errors import CannotTell, MemfitError, ProcessDied, StepFailed, in_one_line
from memfit.estimation.worst_batch import leaves_open, look_where_needed
from memfit.planning.plan import Plan
from memfit.planning.planning import plan as make_plan
from memfit.training.batches import batch_size_of
from memfit.training.guard.events import Journal, log
from memfit.training.running import current_runner

# What is known to have no plan: the data or the model does not tell enough, or the step was recorded in vain.
_UNPLANNABLE = (CannotTell, StepFailed, ProcessDied)


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
    try:
        with runner.teller(arguments).progress():
            plan = runner.plan(
                model, memory, lambda room: _make_plan(model, arguments, first, room, allow, together)
            )
        if is_generator(arguments["x"]) and leaves_open(model):
            journal.note("Planned for batches like the first one: a generator yields each batch only once.")
        return plan
    except _UNPLANNABLE as error:
        # A script under `memfit run` knows nothing of memfit, and could not tell it more.
        if memory is not None and not runner.restarts:
            raise
        journal.note(f"Trained as stock Keras, because no plan could be made: {in_one_line(error)}")
        if memory is not None:
            log.warning("%s", journal.events[-1])
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
            "This is a bug in memfit, please report it."
        )
        log.warning("%s", journal.events[-1], exc_info=error)
    return None


def _make_plan(
    model: keras.Model,
    arguments: Mapping[str, Any],
    first: FirstBatch | None,
    memory: int | str | None,
    allow: str,
    together: Mapping[str, Any],
) -> Plan:
    x = arguments["x"]
    data: Any
    shapes = _look(model, x, arguments["batch_size"], first)
    if shapes is not None:
        data, samples = shapes, max(shape[0][0] for shape in shapes.seen)
    else:
        data = example_of(arguments, first)
        samples = batch_size_of(x, arguments["batch_size"], first)
    validates = arguments["validation_data"] is not None or bool(arguments["validation_split"])
    validation = (arguments["validation_batch_size"] or samples) if validates else None
    return make_plan(model, samples, memory, allow, data=data, validation_batch_size=validation, **together)


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


def _look(model: keras.Model, x: Any, batch_size: int | None, first: FirstBatch | None) -> Shapes | None:
    """Looks at the shapes of data that is trained with afterwards, where they may vary."""
    if is_generator(x):
        return None
    try:
        return look_where_needed(model, x, careful=True)
    except CannotTell:
        batch_size_of(x, batch_size, first)  # which says it where that alone is not known
        raise
