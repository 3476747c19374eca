"""Inputs in 8 bits until they are on the device: advice for images."""

from memfit.compat.keras_layers import all_layers
from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.levers.lever import Facts, Lever
from memfit.sizes import Size

_SCALING = ("Rescaling", "Normalization")


class Uint8Inputs(Lever):
    """Advises to feed images as uint8 where they come as float32."""

    name = "inputs in uint8"

    def fidelity(self, job: Job) -> Fidelity:
        """The same values."""
        return Fidelity.EXACT

    def explain(self, job: Job, batch_size: int) -> str:
        """Says where to scale them."""
        if any(type(layer).__name__ in _SCALING for layer in all_layers(job.model)):
            return "yours to change: feed uint8, as the model scales its inputs"
        return "yours to change: feed uint8 images, and scale in the model (Rescaling)"

    def why_not(self, job: Job) -> str | None:
        """Only images of up to four channels hold 8 bits a value as a rule."""
        inputs = getattr(job.model, "inputs", None) or []
        images = [tensor for tensor in inputs if len(tensor.shape) == 4 and (tensor.shape[-1] or 0) <= 4]
        return None if images else "the inputs are not images"

    def advise_saving(self, facts: Facts | None, job: Job, batch_size: int) -> Size | None:
        """Three of four bytes."""
        return None if facts is None else Size(int(facts.inputs * batch_size * 0.75))
