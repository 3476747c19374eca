"""Keras's own training step with the model's call replaced by one that rematerialises."""

from typing import Any

import keras

from memfit.planning.rematerialisation_segments import Segments
from memfit.training.micro_batches import Step
from memfit.training.rematerialisation import rematerialised


def rematerialised_train_step(model: keras.Model, segments: Segments) -> Step:
    """Returns a `train_step` that does what Keras's does, and computes activations again in the backward pass.

    Args:
        model: A compiled model with Keras's own `train_step`.
        segments: What to keep, as `memfit.planning.rematerialisation` chose it for this model.
    """
    stand_in = _Calling(model, rematerialised(model, segments))

    def train_step(data: Any) -> dict[str, Any]:
        logs: dict[str, Any] = keras.Model.train_step(stand_in, data)
        return logs

    return train_step


class _Calling:
    """The model in everything but its call."""

    def __init__(self, model: keras.Model, call: Any) -> None:
        self._memfit_model = model
        self._memfit_call = call

    def __call__(self, x: Any, training: bool = True) -> Any:
        return self._memfit_call(x, training=training)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._memfit_model, name)
