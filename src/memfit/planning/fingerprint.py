"""Recognising a model: a plan is applied only to the network it was made for."""

import hashlib
from typing import Any

from memfit.compat.keras_layers import all_layers


def fingerprint(model: Any) -> str:
    """Returns a short text that is the same for two models of the same network, whatever their weights.

    It stands for the layers' classes in order, the shapes and types of their weights, which of them are trained,
    and the optimizer's class: what a step's memory depends on.
    """
    facts = [type(getattr(model, "optimizer", None)).__name__]
    for layer in all_layers(model):
        facts.append(f"{type(layer).__name__} {layer.dtype_policy.name}")
    facts += [f"{tuple(weight.shape)} {weight.dtype} {weight.trainable}" for weight in model.weights]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
