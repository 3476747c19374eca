"""Another network: separable convolutions, fewer filters, smaller inputs; advice only."""

import math

import keras

from memfit.compat.keras_layers import all_layers
from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.levers.lever import Lever

_WORTH_SAYING = 0.1  # of the weights


class SmallerNetwork(Lever):
    """Says where the weights are that a smaller network would save; a plan never changes the network itself."""

    name = "smaller network"
    always = Fidelity.MODEL  # another network

    def explain(self, job: Job) -> str:
        """Says what could be smaller."""
        convolutions = [
            layer
            for layer in all_layers(job.model)
            if type(layer) is keras.layers.Conv2D
            and layer.built
            and min(layer.kernel_size) > 1
            and layer.trainable
        ]
        trained = sum(math.prod(weight.shape) for weight in job.model.trainable_variables)
        share = sum(math.prod(layer.kernel.shape) for layer in convolutions) / max(trained, 1)
        if share <= _WORTH_SAYING:
            return "up to you: `memfit slim` compares smaller networks"
        return (
            f"up to you: `memfit slim` compares smaller networks ({share:.0%} of the trained weights are 2D "
            "convolutions)"
        )
