"""LoRA: Keras's own low-rank adapters are trained in the place of large weights."""

import math
from typing import Any

import keras

from memfit.compat.keras_layers import all_layers, output_layers
from memfit.slimming.rebuilding import CannotSlim, compile_like, copy_model
from memfit.slimming.variants.variant import Made, Variant


class LoRA(Variant):
    """Calls `enable_lora` of every layer that offers it, but of those that give the outputs."""

    name = "LoRA"
    meaning = "the rank of the adapters"
    default, least, most, whole = 8, 1, None, True

    def why_not(self, model: Any) -> str | None:
        """Says that no layer offers it."""
        return None if _adaptable(model) else "no layer but the last offers enable_lora"

    def make(self, model: Any, amount: float) -> Made:
        """Enables adapters of that rank where they have fewer weights than the layer."""
        new = copy_model(model)
        rank, adapted = int(amount), 0
        for layer in _adaptable(new):
            kernel = layer.embeddings if isinstance(layer, keras.layers.Embedding) else layer.kernel
            *lead, last = kernel.shape
            if rank * (last + math.prod(lead)) < math.prod(kernel.shape):
                layer.enable_lora(rank)
                adapted += 1
        if not adapted:
            raise CannotSlim(f"adapters of rank {rank} would be as large as the weights they replace")
        notes = (
            f"{adapted} layers train adapters of rank {rank}; their own weights stay as they are",
            "gradients and optimizer state shrink, activations do not",
        )
        return Made(compile_like(new, model), notes)


def _adaptable(model: Any) -> list[Any]:
    last = {id(layer) for layer in output_layers(model)}
    return [
        layer
        for layer in all_layers(model)
        if hasattr(layer, "enable_lora") and id(layer) not in last and layer.built and not layer.lora_enabled
    ]
