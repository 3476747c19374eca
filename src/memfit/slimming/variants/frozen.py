"""Frozen: the first layers are not trained."""

from typing import Any

import keras

from memfit.compat.keras_layers import all_layers
from memfit.slimming.calls import leaf_layers
from memfit.slimming.rebuilding import compile_like, copy_model
from memfit.slimming.variants.variant import Made, Variant

# Keras writes `trainable` of a layer into a file, not that of the layers inside, and ignores a value set already.
_LOADED = (
    "loaded from a file, the layers inside of {} are trained again: set its trainable to True, then to False"
)


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
        holders = [layer.name for layer in layers[:count] if len(all_layers(layer)) > 1]
        notes = (
            f"the first {count} of {len(layers)} layers with weights are frozen, up to {layers[count - 1].name}",
            *(["BatchNormalization among them normalises with its kept statistics"] if normalised else []),
            *([_LOADED.format(", ".join(holders))] if holders else []),
        )
        return Made(compile_like(new, model), notes)
