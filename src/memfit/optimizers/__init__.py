"""Drop-in optimizers with less state than Keras's."""

from memfit.optimizers.adafactor import Adafactor
from memfit.optimizers.adam8bit import Adam8bit

__all__ = ["Adafactor", "Adam8bit"]
