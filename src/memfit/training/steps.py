"""Putting the steps of a plan into a model, and taking them out again whatever happens."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from memfit.budgets.errors import InvalidInput
from memfit.training import private_apis
from memfit.training.micro_batches import Step

_FUNCTIONS = {"train_step": "train_function", "test_step": "test_function"}


def why_not_micro_batched(model: keras.Model) -> str | None:
    """Says why a model's training cannot be cut into micro-batches, or None where it can."""
    if is_custom(model, "train_step"):
        return "its train_step is custom, and only that method knows how its losses add up"
    if (
        tf.distribute.get_strategy().num_replicas_in_sync > 1
        or model.distribute_strategy.num_replicas_in_sync > 1
    ):
        return "it is trained on several replicas"
    if any(getattr(weight, "overwrite_with_gradient", False) for weight in model.trainable_variables):
        return "it has weights that are overwritten with their gradient (float8)"
    losses = keras.tree.flatten(model.loss) if getattr(model, "loss", None) is not None else []
    if len(losses) > 1 and any(getattr(loss, "reduction", "sum") in (None, "none") for loss in losses):
        return 'it adds a loss with reduction="none" to other losses'
    return None


def is_custom(model: keras.Model, step: str) -> bool:
    """Says whether a model has its own `train_step` or `test_step`."""
    return step in vars(model) or getattr(type(model), step) is not getattr(keras.Model, step)


@contextmanager
def installed(model: keras.Model, **steps: Step | None) -> Iterator[None]:
    """Lets a model run other steps (`train_step`, `test_step`) and restores its own ones afterwards.

    Keras's `fit` and `evaluate` do all the rest: data, epochs, callbacks, compilation, several steps per
    execution. The functions that Keras had compiled for the model's own steps are kept for it. With no step
    given the model is not touched.
    """
    chosen = {name: step for name, step in steps.items() if step is not None}
    compiled = {name: getattr(model, _FUNCTIONS[name]) for name in chosen}
    mark = private_apis.compiled_mark(model) if chosen else None
    for name, step in chosen.items():
        object.__setattr__(model, name, step)
        object.__setattr__(model, _FUNCTIONS[name], None)
    try:
        yield
    finally:
        same = mark is not None and mark is private_apis.compiled_mark(model)
        for name in chosen:
            object.__delattr__(model, name)
            # A compile() in a callback has thrown the old functions away.
            object.__setattr__(model, _FUNCTIONS[name], compiled[name] if same else None)


def check_model(model: Any) -> None:
    """Refuses what is no Keras model."""
    if not isinstance(model, keras.Model):
        raise InvalidInput("memfit trains models of Keras 3", received=type(model).__name__)


def check_size(name: str, size: Any) -> None:
    """Refuses a number of samples that is none."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InvalidInput(f"{name} is a whole number of samples, at least 1", received=size)
