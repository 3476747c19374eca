"""Putting a model's training, validation and prediction under guard for the length of a call."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

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
from memfit.training.guard.ending import EndOfData
from memfit.training.guard.evaluation import GuardedPrediction, GuardedValidation
from memfit.training.guard.events import Journal
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
    feeds: tuple[Feed, Feed] = (Feed(), Feed()),
    host: HostArrays | None = None,
    peers: Peers = ALONE,
) -> Iterator[None]:
    """Lets a model train and validate under guard, with the steps of a plan.

    Args:
        plan: The plan to begin with; None for stock Keras's step.
        feeds: The ways back to the training data and to the validation data in this process.
        host: What training steps read their samples from; None where the data gives whole batches.
        peers: The other processes that train the model.
    """
    recipe = Recipe() if plan is None else plan.recipe
    size = None if is_custom(model, "test_step") else recipe.validation_batch
    if has_strategy(model):
        journal.note("Trained without the guard, because a distribution strategy runs its steps.")
        train = None if recipe.is_stock else build_body(model, recipe)
        test = None if size is None else build_test_body(model, size)
        journal.note(explain_strategy(model), warn=True)
        with mended(), installed(model, train_step=train, test_step=test):
            yield
        return
    # With a changed model the steps are others, and they end with the change.
    steps = {} if recipe.changes else keras_training.kept_steps(model)
    training = GuardedTraining(
        model,
        Ways(replace(recipe, validation_batch=None), None if plan is None else plan.ordinary),
        Tightening(model, allow, plan),
        journal,
        steps.setdefault(
            ("train", model.run_eagerly, model.jit_compile, host, peers.share_of(model, "training")), {}
        ),
        reader=Reader("training", journal, feeds[0]),
        host=host,
        at_end=EndOfData(model, "train_function", journal, steps, peers),
        peers=peers,
    )
    validation = GuardedValidation(model, size, journal, steps, feeds[1], peers)
    try:
        with replaced(model, train_function=training, test_function=validation):
            yield
    finally:
        training.end()


@contextmanager
def guarded_evaluation(
    model: keras.Model, size: int | None, journal: Journal, peers: Peers
) -> Iterator[None]:
    """Lets a model evaluate under guard, at first `size` samples at a time.

    Only a graph of Keras's own step computes a share of a batch; otherwise every process evaluates all of it.
    """
    if is_custom(model, "test_step") or model.run_eagerly:
        peers = ALONE
    if has_strategy(model):
        with mended(), installed(model, test_step=None if size is None else build_test_body(model, size)):
            yield
        return
    kept = keras_training.kept_steps(model)
    validation = GuardedValidation(model, size, journal, kept, Feed(), peers)
    with replaced(model, test_function=validation):
        yield


@contextmanager
def guarded_prediction(model: keras.Model, journal: Journal, peers: Peers) -> Iterator[None]:
    """Lets a model predict under guard."""
    if has_strategy(model):
        with mended():
            yield
        return
    model.make_predict_function()
    prediction = GuardedPrediction(model, model.predict_function, journal, peers)
    with replaced(model, predict_function=prediction):
        yield
