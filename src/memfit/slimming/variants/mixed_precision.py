"""Mixed precision: layers compute in 16 bits, their weights stay in 32."""

from typing import Any

from memfit.budgets.gpu_table import find_gpu
from memfit.slimming.rebuilding import compile_like, copy_model
from memfit.slimming.variants.variant import Made, Variant
from memfit.steps.precision import choose_policy, list_lowered, why_not_lowered


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
        return why_not_lowered(model)

    def make(self, model: Any, amount: float) -> Made:
        """Sets the policy of a copy's layers."""
        policy = choose_policy(find_gpu(self._device))
        new = copy_model(model)
        for layer in list_lowered(new):
            layer.dtype_policy = policy
        notes = (f"{policy}: activations in 16 bits, weights and the output layers in 32",)
        return Made(compile_like(new, model), notes)

    def label(self, amount: float) -> str:
        """Its amount is always the same."""
        return self.name
