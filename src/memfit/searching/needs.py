"""What a call of `fit` will take, predicted in the process that is about to make it."""

import logging
from typing import Any

from memfit.errors import MemfitError
from memfit.estimation.estimating import estimate
from memfit.training.batches import batch_size_of, look_ahead
from memfit.training.plan_choice import example_of


def predict_need(model: Any, arguments: dict[str, Any]) -> int | None:
    """Predicts the memory of a call of Keras's `fit`; None where it cannot be known.

    Args:
        model: The model.
        arguments: The call's arguments by name; a generator, of which one batch is read, is replaced in them.
    """
    try:
        x, first = look_ahead(arguments.get("x"))
        if "x" in arguments:
            arguments["x"] = x
        batch_size = batch_size_of(x, arguments.get("batch_size"), first)
        told = estimate(model, batch_size, data=example_of(arguments, first))
        if (arguments.get("validation_batch_size") or 0) > batch_size:
            return max(int(told.needed), int(told.validate.at(arguments["validation_batch_size"]).needed))
        return int(told.needed)
    except (MemfitError, TimeoutError):
        return None
    except Exception as error:  # a bug in memfit is no reason for a trial to fail
        logging.getLogger("memfit").warning("The memory of a trial could not be predicted.", exc_info=error)
        return None
