"""Putting the steps of a plan into a model, and taking them out again whatever happens."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from memfit.compat import keras_training
from memfit.compat.attributes import overridden
from memfit.errors import InvalidInput

if TYPE_CHECKING:
    from memfit.steps.micro_batches.step import Step

_FUNCTIONS = {"train_step": "train_function", "test_step": "test_function"}


def is_custom(model: keras.Model, step: str) -> bool:
    """Says whether a model has its own `train_step`, `test_step` or other method of a step."""
    return step in vars(model) or getattr(type(model), step) is not getattr(keras.Model, step)


def why_step_is_fixed(model: keras.Model) -> str | None:
    """Says why a model's training step cannot be computed in another way, or None where it can.

    A strategy that keeps copies of the variables lets them be written only by its own rules, and those know
    Keras's step.
    """
    if is_custom(model, "train_step"):
        return "its train_step is custom, and only that method knows how its losses add up"
    of_one_device = isinstance(model.distribute_strategy, tf.distribute.OneDeviceStrategy)
    if keras_training.has_strategy(model) and not of_one_device:
        return f"{type(model.distribute_strategy).__name__} runs its steps and keeps its variables"
    return None


def why_not_rematerialised(model: keras.Model) -> str | None:
    """Says why a model's activations cannot be computed again, or None where they can.

    Those of a custom `train_step` can, because its tapes' ops are rewritten; XLA's have other rules.
    """
    if not is_custom(model, "train_step") or keras_training.has_strategy(model):
        return why_step_is_fixed(model)
    if model.jit_compile:
        return "its train_step is custom and compiled with XLA"
    return None


def why_not_micro_batches(model: keras.Model) -> str | None:
    """Says why a model's training cannot be cut into micro-batches, or None where it can."""
    fixed = why_step_is_fixed(model)
    if fixed is not None:
        return fixed
    if any(tensor.shape[0] is not None for tensor in getattr(model, "inputs", None) or []):
        return "its inputs allow only one batch size"
    if any(getattr(weight, "overwrite_with_gradient", False) for weight in model.trainable_variables):
        return "it has weights that are overwritten with their gradient (float8)"
    losses = keras.tree.flatten(model.loss) if getattr(model, "loss", None) is not None else []
    if len(losses) > 1 and any(getattr(loss, "reduction", "sum") in (None, "none") for loss in losses):
        return 'it adds a loss with reduction="none" to other losses'
    return None


@contextmanager
def installed(model: keras.Model, **steps: "Step | None") -> Iterator[None]:
    """Lets a model run other steps (`train_step`, `test_step`) and restores its own ones afterwards.

    Keras's `fit` and `evaluate` do all the rest: data, epochs, callbacks, compilation, several steps per
    execution. The functions that Keras had compiled for the model's own steps are kept for it. With no step
    given the model is not touched.
    """
    chosen = {name: step for name, step in steps.items() if step is not None}
    with replaced(model, **{_FUNCTIONS[name]: None for name in chosen}), overridden(model, **chosen):
        yield


@contextmanager
def replaced(model: keras.Model, **functions: Any) -> Iterator[None]:
    """Lets a model run other functions (`train_function`, ...) than Keras compiles, and restores its own ones."""
    own = {name: getattr(model, name) for name in functions}
    mark = keras_training.compiled_mark(model)
    for name, function in functions.items():
        object.__setattr__(model, name, function)
    try:
        yield
    finally:
        same = mark is keras_training.compiled_mark(model)
        for name in functions:
            # A compile() in a callback has thrown the old functions away.
            object.__setattr__(model, name, own[name] if same else None)


def check_model(model: Any) -> None:
    """Refuses what is no Keras model."""
    if not isinstance(model, keras.Model):
        raise InvalidInput("memfit trains models of Keras 3", received=type(model).__name__)
