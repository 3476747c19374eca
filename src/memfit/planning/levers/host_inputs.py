"""The lever of inputs that stay on the host: a step takes only the samples that it computes."""

from typing import Any

from memfit.compat.keras_training import has_strategy
from memfit.planning.fidelity import Fidelity
from memfit.planning.levers.micro_batches import custom_step

NAME = "inputs on the host"
FIDELITY = Fidelity.EXACT
# Copying the samples when they are wanted, not ahead of time: below what can be measured for an image network.
COST = 0.005


def why_not(model: Any, data: Any, device: str | None = None) -> str | None:
    """Says why the samples cannot be taken from the host's arrays as they are needed, or None where they can.

    Args:
        model: A compiled model.
        data: What it will be trained on; None where nobody said, which is taken for arrays.
        device: The GPU that is planned for, whose figures are of a step that XLA compiles; None for this machine.
    """
    if device is not None or (model.jit_compile and not model.run_eagerly):
        return "XLA compiles the step, and such a step cannot read from the host"
    if (reason := custom_step(model)) is not None:
        return reason
    if has_strategy(model):
        return "a distribution strategy feeds the steps"
    if data is not None and not are_arrays(data):
        return "the data comes in batches already, or not as NumPy arrays"
    return None


def are_arrays(data: Any) -> bool:
    """Whether data is NumPy arrays of numbers and nothing else, in any nested structure."""
    import keras
    import numpy as np

    leaves = [leaf for leaf in keras.tree.flatten(data) if leaf is not None]
    return bool(leaves) and all(
        isinstance(leaf, np.ndarray) and leaf.ndim > 0 and leaf.dtype.kind in "biuf" for leaf in leaves
    )
