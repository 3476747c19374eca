"""Optimizers of Keras that keep less: drop-in ones for `model.compile`."""

from memfit.optimizers.adafactor import Adafactor
from memfit.optimizers.adam8bit import Adam8bit

__all__ = ["Adafactor", "Adam8bit"]
