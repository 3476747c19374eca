"""The lever of the inputs: batches that wait in memory before they are trained on."""

from typing import Any

from memfit.compat.keras_layers import all_layers
from memfit.planning.fidelity import Fidelity
from memfit.planning.plan import Lever
from memfit.sizes import Size

NAME = "inputs in uint8"


def lever(model: Any, inputs: int, batch_size: int) -> Lever:
    """Says what keeping the inputs in 8 bits until they are on the device would save.

    Args:
        model: The model; one that scales its inputs itself can take uint8 as it is.
        inputs: Bytes of one sample of the inputs.
        batch_size: Samples in a batch.
    """
    scales = any(type(layer).__name__ in ("Rescaling", "Normalization") for layer in all_layers(model))
    saving = Size(int(inputs * batch_size * 0.75))
    if scales:
        why = "yours to change: feed uint8, as the model scales its inputs"
    else:
        why = "yours to change: feed uint8, and scale in the model (Rescaling)"
    return Lever(NAME, Fidelity.EXACT, used=False, why=why, saving=saving)
