"""The lever of another network: separable convolutions, fewer filters, smaller inputs."""

import math
from typing import Any

from memfit.compat.keras_layers import all_layers
from memfit.planning.fidelity import Fidelity
from memfit.planning.plan import Lever

NAME = "smaller network"


def lever(model: Any) -> Lever:
    """Says where the weights are that a smaller network would save; a plan never changes the network itself."""
    import keras

    convolutions = [
        layer
        for layer in all_layers(model)
        if type(layer) is keras.layers.Conv2D and layer.built and min(layer.kernel_size) > 1
    ]
    trained = sum(math.prod(weight.shape) for weight in model.trainable_variables)
    share = sum(math.prod(layer.kernel.shape) for layer in convolutions) / max(trained, 1)
    advice = "yours to change: smaller inputs"
    if share > 0.1:
        advice += f", or SeparableConv2D ({share:.0%} of the weights are in 2D convolutions)"
    return Lever(NAME, Fidelity.MODEL, used=False, why=advice)
