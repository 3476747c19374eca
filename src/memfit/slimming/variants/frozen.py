"""Frozen: the first layers are not trained."""

from typing import Any

import keras

from memfit.slimming.calls import leaf_layers
from memfit.slimming.rebuilding import compile_like, copy_model
from memfit.slimming.variants.variant import Made, Variant


class Frozen(Variant):
    """Trains only the last layers: no gradients, optimizer state or kept activations of those before."""

    name = "frozen"
    meaning = "the fraction of layers with weights, from the first on, that are not trained"
    default, least, most = 0.5, 0.01, 0.99

    def why_not(self, model: Any) -> str | None:
        """Says that there is no second layer to train."""
        trained = [layer for layer in leaf_layers(model) if layer.trainable_weights]
        return None if len(trained) > 1 else "fewer than two of its layers are trained"

    def make(self, model: Any, amount: float) -> Made:
        """Sets `trainable` of the first layers of a copy."""
        new = copy_model(model)
        layers = leaf_layers(new)
        count = min(max(1, round(amount * len(layers))), len(layers) - 1)
        for layer in layers[:count]:
            layer.trainable = False
        normalised = any(isinstance(layer, keras.layers.BatchNormalization) for layer in layers[:count])
        notes = (
            f"the first {count} of {len(layers)} layers with weights are frozen, up to {layers[count - 1].name}",
            *(["BatchNormalization among them normalises with its kept statistics"] if normalised else []),
        )
        return Made(compile_like(new, model), notes)
