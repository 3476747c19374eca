"""`evaluate`: Keras's own, in batches of its own size."""

from contextlib import nullcontext
from typing import Any

import keras

from memfit.errors import InvalidInput
from memfit.steps.installing import check_model, is_custom, replaced
from memfit.steps.recipe import check_size
from memfit.training.batches import check_not_empty
from memfit.training.guard.events import Event, Journal
from memfit.training.guard.guarding import guarded_evaluation
from memfit.training.peers import find_peers
from memfit.training.tiles.choosing import Tiles, check_alone
from memfit.training.tiles.tiling import TiledEvaluation


def evaluate(
    model: keras.Model,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    verbose: str | int = "auto",
    sample_weight: Any = None,
    steps: int | None = None,
    callbacks: Any = None,
    return_dict: bool = False,
    *,
    micro_batch: int | None = None,
    tiles: Tiles | None = None,
    events: list[Event] | None = None,
) -> Any:
    """Evaluates a model as `model.evaluate` does, in smaller batches if asked to.

    Loss and metrics are those of the batches that the data comes in, whatever `micro_batch` is: a batch of a
    dataset or generator is split inside the step. A batch that runs out of memory is evaluated again in smaller
    parts.

    Args:
        model: A compiled model.
        micro_batch: Samples to compute at once; None for whole batches, as stock Keras does.
        tiles: For images and volumes that do not fit one at a time: the side of the tiles that each is computed in,
            or "auto", as in `memfit.predict`. Loss and metrics are computed from whole outputs.
        events: A list to append to what happened: an event, also logged as a warning, each time memory ran out.

    Returns:
        What `model.evaluate` returns.
    """
    check_model(model)
    check_not_empty(x)
    check_size("micro_batch", micro_batch)
    if micro_batch is not None and is_custom(model, "test_step"):
        raise InvalidInput(
            "A custom test_step cannot evaluate a batch in micro-batches: only it knows how its losses add up",
            remedy="Leave micro_batch out, and pass smaller batches",
        )
    journal = Journal(events)
    if tiles is not None:
        check_alone(tiles, micro_batch)
        _check_test_step(model)
        evaluation: Any = replaced(model, test_function=TiledEvaluation(model, tiles, journal))
    elif model.compiled:
        evaluation = guarded_evaluation(model, micro_batch, journal, find_peers())
    else:
        evaluation = nullcontext()
    with evaluation:
        return model.evaluate(
            x=x,
            y=y,
            batch_size=batch_size,
            verbose=verbose,
            sample_weight=sample_weight,
            steps=steps,
            callbacks=callbacks,
            return_dict=return_dict,
        )


def _check_test_step(model: keras.Model) -> None:
    if not model.compiled or is_custom(model, "test_step"):
        raise InvalidInput(
            "Tiles are for compiled models with Keras's own test_step",
            received="a custom test_step" if model.compiled else "a model that is not compiled",
        )
