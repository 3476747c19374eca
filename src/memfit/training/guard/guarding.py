"""Putting a model's training, validation and prediction under guard for the length of a call."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import keras

from memfit.compat import keras_training
from memfit.compat.keras_strategies import mended
from memfit.compat.keras_training import has_strategy
from memfit.planning.fidelity import Fidelity
from memfit.planning.plan import Plan
from memfit.steps.host_arrays import HostArrays
from memfit.steps.installing import installed, is_custom, replaced
from memfit.steps.recipe import Recipe
from memfit.steps.train_step import build_body, build_test_body
from memfit.training.feeding import Feed
from memfit.training.guard.evaluation import GuardedPrediction, GuardedValidation
from memfit.training.guard.events import Journal, log
from memfit.training.guard.reading import Reader
from memfit.training.guard.strategies import explain_strategy
from memfit.training.guard.tightening import Tightening
from memfit.training.guard.training import GuardedTraining
from memfit.training.guard.ways import Ways
from memfit.training.peers import ALONE, Peers


@contextmanager
def guarded_training(
    model: keras.Model,
    plan: Plan | None,
    allow: Fidelity,
    journal: Journal,
    feed: Feed | None = None,
    validation_feed: Feed | None = None,
    host: HostArrays | None = None,
    after_batch: Callable[[int], None] | None = None,
    peers: Peers = ALONE,
) -> Iterator[None]:
    """Lets a model train and validate under guard, with the steps of a plan.

    Args:
        plan: The plan to begin with; None for stock Keras's step.
        feed: The training data, where it may be opened again in this process.
        validation_feed: The same for the validation data.
        host: What training steps read their samples from; None where the data gives whole batches.
        after_batch: What to call with the number of each batch that was trained.
        peers: The other processes that train the model.
    """
    recipe = Recipe() if plan is None else plan.recipe
    size = None if is_custom(model, "test_step") else recipe.validation_batch
    reason = why_not(model)
    if reason is not None:
        journal.note(f"Trained without the guard, because {reason}.")
        train = None if recipe.is_stock else build_body(model, recipe)
        test = None if size is None else build_test_body(model, size)
        for remark in explain_strategy(model):
            journal.note(remark)
            log.warning("%s", remark)
        with mended(), installed(model, train_step=train, test_step=test):
            yield
        return
    # With a changed model the steps are others, and they end with the change.
    steps = {} if recipe.changes else keras_training.kept_steps(model)
    training = GuardedTraining(
        model,
        Ways(replace(recipe, validation_batch=None), None if plan is None else plan.ordinary),
        Tightening(model, allow),
        Reader("training", journal, feed),
        journal,
        steps.setdefault(
            ("train", model.run_eagerly, model.jit_compile, host, peers.share_of(model, "training")), {}
        ),
        host,
        after_batch,
        peers,
    )
    validation = _validation(model, size, journal, steps, validation_feed, peers)
    try:
        with replaced(model, train_function=training, test_function=validation):
            yield
    finally:
        training.end()


@contextmanager
def guarded_evaluation(
    model: keras.Model, size: int | None, journal: Journal, peers: Peers = ALONE
) -> Iterator[None]:
    """Lets a model evaluate under guard, at first `size` samples at a time."""
    if why_not(model) is not None:
        with mended(), installed(model, test_step=None if size is None else build_test_body(model, size)):
            yield
        return
    validation = _validation(model, size, journal, keras_training.kept_steps(model), None, peers)
    with replaced(model, test_function=validation):
        yield


@contextmanager
def guarded_prediction(model: keras.Model, journal: Journal, peers: Peers = ALONE) -> Iterator[None]:
    """Lets a model predict under guard."""
    if why_not(model) is not None:
        with mended():
            yield
        return
    model.make_predict_function()
    prediction = GuardedPrediction(model, model.predict_function, journal, peers)
    with replaced(model, predict_function=prediction):
        yield


def why_not(model: keras.Model) -> str | None:
    """Says why a model's steps cannot be guarded, or None where they can."""
    if has_strategy(model):
        return "a distribution strategy runs its steps"
    return None


def _validation(
    model: keras.Model,
    size: int | None,
    journal: Journal,
    kept: dict[Any, Any],
    feed: Feed | None,
    peers: Peers,
) -> GuardedValidation:
    steps = kept.setdefault(
        ("test", model.run_eagerly, model.jit_compile, peers.share_of(model, "validation")), {}
    )
    return GuardedValidation(model, size, Reader("validation", journal, feed), journal, steps, peers)
