"""Inputs in 8 bits until they are on the device: advice for images."""

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from memfit.compat.keras_layers import all_layers
from memfit.data.peeking import FirstBatch
from memfit.errors import CannotTell
from memfit.estimation.recording.specs import Leaf
from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.levers.lever import Lever
from memfit.sizes import Size

_SCALING = ("Rescaling", "Normalization")
_CHANNELS = (1, 3, 4)
# How pixels come in floats: as they are, from 0 to 1, and from -1 to 1; factor and offset back to whole numbers.
_WAYS_BACK = ((1.0, 0.0), (255.0, 0.0), (127.5, 127.5))
# Of a whole number of up to 255, far above float32 rounding and far below what interpolation makes of it.
_TOLERANCE = 1e-2
_SAMPLES_SEEN = 8


class Uint8Inputs(Lever):
    """Advises to feed images as uint8 where they come as floats."""

    name = "inputs in uint8"
    always = Fidelity.EXACT  # the same values

    def explain(self, job: Job) -> str:
        """Says where to scale them."""
        if any(type(layer).__name__ in _SCALING for layer in all_layers(job.model)):
            return "up to you: feed uint8, as the model scales its inputs"
        return "up to you: feed uint8 images, and scale in the model (Rescaling)"

    def why_not(self, job: Job) -> str | None:
        """Only images hold 8 bits a value as a rule, and where there is an example it tells."""
        try:
            return None if _float_images(job) else "the inputs are not float images with pixel values"
        except CannotTell:
            return "the shapes of the inputs are not known"

    def see_in_data(self, job: Job) -> str | None:
        """Whether its values are those of pixels."""
        return self.why_not(job)

    def advise_saving(self, job: Job, batch_size: int) -> Size | None:
        """All but one byte of each value."""
        saved = sum(math.prod(leaf.shape) * (tf.as_dtype(leaf.dtype).size - 1) for leaf in _float_images(job))
        return Size(saved * batch_size)


def _float_images(job: Job) -> list[Leaf]:
    """The inputs that may be images and come in floats."""
    leaves = keras.tree.flatten(_first(job.spec.structure))  # None for an optional input that is not given
    data = job.data.batch if isinstance(job.data, FirstBatch) else job.data
    examples = keras.tree.flatten(_first(data))
    if len(examples) != len(leaves):  # a dataset, of which nothing is read
        examples = [None] * len(leaves)
    return [
        leaf
        for leaf, example in zip(leaves, examples, strict=True)
        if leaf is not None
        and len(leaf.shape) == 3
        and leaf.shape[-1] in _CHANNELS
        and "float" in leaf.dtype
        and _may_be_pixels(example)
    ]


def _first(batch: Any) -> Any:
    return batch[0] if isinstance(batch, tuple) else batch


def _may_be_pixels(example: Any) -> bool:
    """Whether the first samples are whole numbers from 0 to 255, scaled or not; true where there are no values."""
    if not hasattr(example, "__array__"):
        return True
    values = np.asarray(example[:_SAMPLES_SEEN], "float64")
    for factor, offset in _WAYS_BACK:
        pixels = values * factor + offset
        whole = np.abs(pixels - np.round(pixels)) < _TOLERANCE
        if np.all(whole & (pixels > -_TOLERANCE) & (pixels < 255 + _TOLERANCE)):
            return True
    return False
