"""Mixed precision: layers compute in 16 bits, their weights stay in 32."""

from typing import Any

from memfit.budgets.gpu_table import find_gpu
from memfit.compat.keras_layers import all_layers, output_layers
from memfit.slimming.rebuilding import compile_like, copy_model
from memfit.slimming.variants.variant import Made, Variant


class MixedPrecision(Variant):
    """Lets all layers but those of the outputs compute in 16 bits: bfloat16, or float16 where a GPU has only that.

    Args:
        device: Name of the GPU it is for; None for this machine's.
    """

    name = "mixed precision"
    meaning = "bits of an activation"
    default, least, most, whole = 16, 16, 16, True

    def __init__(self, device: str | None = None) -> None:
        self._device = device

    def why_not(self, model: Any) -> str | None:
        """Says that it computes in something else than float32 already."""
        for layer in all_layers(model):
            if layer.dtype_policy.name != "float32":
                return f"{layer.name} already uses the policy {layer.dtype_policy.name}"
        return None

    def make(self, model: Any, amount: float) -> Made:
        """Sets the policy of a copy's layers."""
        card = find_gpu(self._device)
        policy = "mixed_bfloat16" if card is None or card.bfloat16 else "mixed_float16"
        new = copy_model(model)
        kept = {id(layer) for layer in output_layers(new)}
        for layer in all_layers(new):
            if id(layer) not in kept:
                layer.dtype_policy = policy
        notes = (f"{policy}: activations in 16 bits, weights and the output layers in 32",)
        return Made(compile_like(new, model), notes)

    def label(self, amount: float) -> str:
        """Its amount is always the same."""
        return self.name
