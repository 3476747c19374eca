"""Trying, on a few samples, whether the loss and the gradients of a function add up from parts of a batch.

A function says nothing of how its loss is made. So it is computed: once for some samples, once for the same samples
in parts, by the steps that would train it. Then again with other numbers in the samples: a loss that is divided by
the sum of weights, or by what a mask leaves, may add up by chance where all of them are alike.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import tensorflow as tf

from memfit.compat.keras_layers import statistics_left_alone
from memfit.errors import in_one_line
from memfit.steps.losses.function import LossFunction, Seen
from memfit.steps.losses.step import GradientStep
from memfit.steps.micro_batches.varying import agree, half_of_digits, vary_samples
from memfit.steps.recipe import Recipe

SAMPLES = 8
# How many samples are tried, and in parts of how many: parts of unequal size show a sum as well as a mean of means.
# Fewer where memory runs out.
_TRIED = ((SAMPLES, 3), (3, 2))
_ROUNDINGS = 100  # of the largest gradient, that a sum of such may be off by


@dataclass(frozen=True)
class Trial:
    """What came of it.

    Attributes:
        why_not: Why the function cannot be computed in parts, or None.
        differs: Why parts would give something near to the batch's gradients, or None where it is the same.
        sums: Whether the losses of parts add up; otherwise it is their mean, weighed by samples.
    """

    why_not: str | None = None
    differs: str | None = None
    sums: bool = False


def try_in_parts(loss: LossFunction, samples: Sequence[Any]) -> Trial:
    """Computes some samples at once and in parts; nothing that the function changes stays changed.

    BatchNormalization normalises as in inference meanwhile: that micro-batches change it needs no trial.

    Args:
        samples: Arrays for its tensors, with a few samples.
    """
    if not any(loss.call.has_samples):
        return Trial(why_not="none of its arguments has a batch dimension")
    if loss.seen.draws:
        reason = "other random numbers: those of tf.random without a seed cannot be drawn per micro-batch"
        return Trial(differs=f"{reason} (and its loss is assumed, unchecked, to be a mean over samples)")
    for count, part in _TRIED:
        few = loss.call.map_samples(itemgetter(slice(count)), samples)
        try:
            return _try(loss, few, part)
        except tf.errors.ResourceExhaustedError:
            continue
        except Exception as error:  # whatever a user's function raises
            return Trial(why_not=f"it could not be tried in micro-batches: {in_one_line(error)}")
    return Trial(why_not="it could not be tried in micro-batches: memory ran out for a few samples")


def _try(loss: LossFunction, samples: Sequence[Any], part: int) -> Trial:
    in_parts = Recipe(micro_batch=part)
    whole = _compute(loss, samples, Recipe(), False)
    mean, total = (_compute(loss, samples, in_parts, sums) for sums in (False, True))
    tolerance = half_of_digits("bfloat16" if loss.seen.half else _coarsest(whole.gradients))
    right = next((way for way in (mean, total) if whole.agrees(way, tolerance)), None)
    if right is not None:
        varied = loss.call.map_samples(vary_samples, samples)
        try:
            again = [_compute(loss, varied, recipe, right is total) for recipe in (Recipe(), in_parts)]
        except tf.errors.ResourceExhaustedError:
            raise
        except Exception:  # other numbers may be invalid to it
            again = []
        if again and not again[0].agrees(again[1], tolerance):
            right, whole, mean = None, *again
    if right is None:
        story = f"a few samples have a loss of {whole.loss:.4g} in one batch and {mean.loss:.4g} in parts"
        return Trial(why_not=f"its loss, or a gradient, does not add up over micro-batches ({story})")
    if loss.seed_states and loss.jit_compile:
        return Trial(differs="other random numbers: XLA draws them in its own order", sums=right is total)
    if not all(map(np.array_equal, whole.state, right.state)) and not whole.state_agrees(right, tolerance):
        return Trial(differs="it changes variables with every micro-batch", sums=right is total)
    return Trial(sums=right is total)


def _coarsest(gradients: Sequence[Any]) -> str:
    """The number format of gradients that has the fewest digits."""
    return max((g.dtype.name for g in gradients if g is not None), key=half_of_digits, default="float32")


@dataclass(frozen=True)
class _Outcome:
    """The loss, the gradients, and what the function's own variables were after it."""

    loss: float
    gradients: list[Any]
    state: list[Any]

    def agrees(self, other: "_Outcome", tolerance: float) -> bool:
        if not agree(self.loss, other.loss, tolerance):
            return False
        # A gradient that is zero but for rounding, as of a bias before a normalisation, is a sum of larger ones.
        largest = max((np.abs(g).max(initial=0) for g in self.gradients if g is not None), default=0)
        noise = _ROUNDINGS * tolerance**2 * float(largest)
        return all(
            one is two if one is None or two is None else agree(one, two, tolerance, noise)
            for one, two in zip(self.gradients, other.gradients, strict=True)
        )

    def state_agrees(self, other: "_Outcome", tolerance: float) -> bool:
        return all(agree(one, two, tolerance) for one, two in zip(self.state, other.state, strict=True))


def _compute(loss: LossFunction, samples: Sequence[Any], recipe: Recipe, sums: bool) -> _Outcome:
    trial = copy.copy(loss)
    trial.seen, trial.jit_compile, trial.sums = Seen(), False, sums
    tensors = [tf.convert_to_tensor(array) for array in samples]
    specs = [
        tf.TensorSpec([None, *tensor.shape[1:]] if has else tensor.shape, tensor.dtype)
        for tensor, has in zip(tensors, loss.call.has_samples, strict=True)
    ]
    step = GradientStep(trial, recipe)
    with statistics_left_alone():
        trial.look(specs)
        step.trace(specs)
    step.note()
    try:
        computed = step.compute(tensors, specs)
        state = [variable.numpy() for variable in trial.seen.changing]
    finally:
        step.undo()
    gradients = [
        None if gradient is None else np.asarray(tf.convert_to_tensor(gradient))
        for gradient in computed.gradients
    ]
    return _Outcome(float(computed.loss), gradients, state)
