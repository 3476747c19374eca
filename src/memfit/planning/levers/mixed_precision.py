"""The lever of mixed precision: activations in 16 bits."""

from typing import Any

from memfit.budgets.nvml import gpus
from memfit.compat.keras_layers import all_layers
from memfit.planning.fidelity import Fidelity

NAME = "mixed precision"
FIDELITY = Fidelity.PRECISION
# What of the activations 16 bits save: nearly half; normalisations compute in float32 inside, and the weights are
# cast beside their float32 selves.
SAVED_OF_ACTIVATIONS = 0.4


def why_not(model: Any) -> str | None:
    """Says why a model cannot be lowered to mixed precision, or None where it can."""
    for layer in all_layers(model):
        if layer.dtype_policy.name != "float32":
            return f"{layer.name} computes under the policy {layer.dtype_policy.name} already"
    return None


def policy(device: str | None = None) -> str:
    """The policy for a named GPU or those here: bfloat16, but where only float16 is fast (before Ampere)."""
    names = [device] if device is not None else [gpu.name for gpu in gpus()]
    old = ("T4", "V100", "P100", "RTX 20", "GTX", "TITAN")
    return "mixed_float16" if any(mark in name for name in names for mark in old) else "mixed_bfloat16"
