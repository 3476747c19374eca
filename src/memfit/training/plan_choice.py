"""The plan of a call of `fit` that was given none: what can be planned is, and the rest trains as stock Keras."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from memfit.compat import keras_data
from memfit.data.peeking import FirstBatch
from memfit.errors import CannotTell, InvalidInput, in_one_line
from memfit.planning.plan import Plan
from memfit.planning.planning import plan as make_plan
from memfit.planning.refusal import DoesNotFit
from memfit.training.batches import batch_size_of
from memfit.training.guard.events import Journal, log
from memfit.training.running import current_runner


def choose_plan(
    model: keras.Model,
    arguments: Mapping[str, Any],
    first: FirstBatch | None,
    memory: int | str | None,
    allow: str,
    journal: Journal,
) -> Plan | None:
    """Returns a plan for a call of `fit`; None where none can be made and none was asked for.

    Args:
        model: A compiled model.
        arguments: Keras's arguments.
        first: The first batch, where it is known.
        memory: What training may take; None for what is free.
        allow: The most that the plan may change.
        journal: Where it is noted that there is no plan.

    Raises:
        DoesNotFit: If no allowed plan fits.
        InvalidInput: If a memory is asked for, and no plan can be made for it.
    """
    runner = current_runner()
    try:
        return runner.plan(model, memory, lambda room: _make_plan(model, arguments, first, room, allow))
    except DoesNotFit:
        raise
    except Exception as error:  # whatever a step of one's own says to samples that are not real
        # A script under `memfit run` knows nothing of memfit, and could not tell it more.
        wrong = isinstance(error, InvalidInput) and not isinstance(error, CannotTell)
        if memory is not None and (wrong or not runner.restarts):
            raise
        journal.note(f"Trained as stock Keras, because no plan could be made: {in_one_line(error)}")
        if memory is not None:
            log.warning("%s", journal.events[-1])
        return None


def _make_plan(
    model: keras.Model,
    arguments: Mapping[str, Any],
    first: FirstBatch | None,
    memory: int | str | None,
    allow: str,
) -> Plan:
    x, weight = arguments["x"], arguments["sample_weight"]
    if weight is None and arguments["class_weight"]:
        weight = np.ones(1, "float32")  # Keras makes a sample weight of every class weight
    data = (first or x) if keras_data.batches_itself(x) else (x, arguments["y"], weight)
    samples = batch_size_of(x, arguments["batch_size"], first)
    validates = arguments["validation_data"] is not None or bool(arguments["validation_split"])
    validation = (arguments["validation_batch_size"] or samples) if validates else None
    return make_plan(model, samples, memory, allow, data=data, validation_batch_size=validation)
