"""Trying, on a few samples, whether the loss and the gradients of a function add up from parts of a batch.

A function says nothing of how its loss is made. So it is computed: once for some samples, once for the same samples
in parts, by the steps that would train it. Then again with other numbers in the samples: a loss that is divided by
the sum of weights, or by what a mask leaves, may add up by chance where all of them are alike.
"""

import copy
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from memfit.compat.keras_layers import statistics_left_alone
from memfit.errors import in_one_line
from memfit.steps.losses.function import LossFunction, Seen
from memfit.steps.losses.step import build_gradients
from memfit.steps.recipe import Recipe

SAMPLES = 8
_PART = 3  # 3, 3 and 2: parts of unequal size show a sum as well as a mean of means
# Far above rounding, far below the factor that a sum would be wrong by; in 16 bits rounding is much larger.
_TOLERANCE, _TOLERANCE_OF_HALF = 1e-3, 5e-2


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
        return Trial(why_not="nothing that it is called with has samples")
    if loss.seen.draws:
        reason = "other random numbers: those of tf.random without a seed cannot be drawn in parts"
        return Trial(differs=f"{reason} (and its loss was taken for a mean over the samples, unchecked)")
    try:
        whole, mean, total = (_compute(loss, samples, recipe, sums) for recipe, sums in _WAYS)
    except Exception as error:  # whatever a user's function raises
        return Trial(why_not=f"it could not be tried in parts: {in_one_line(error)}")
    tolerance = _TOLERANCE_OF_HALF if loss.seen.half else _TOLERANCE
    right = next((way for way in (mean, total) if whole.agrees(way, tolerance)), None)
    if right is not None:
        with suppress(Exception):  # other numbers may be no valid ones
            varied = [_vary(array, has) for array, has in zip(samples, loss.call.has_samples, strict=True)]
            again = [_compute(loss, varied, recipe, right is total) for recipe, _ in _WAYS[:2]]
            if not again[0].agrees(again[1], tolerance):
                right, whole, mean = None, *again
    if right is None:
        story = f"a few samples have a loss of {whole.loss:.4g} at once and {mean.loss:.4g} in parts"
        return Trial(why_not=f"its loss, or a gradient, does not add up from parts of a batch ({story})")
    if loss.seed_states and loss.jit_compile:
        return Trial(
            differs="other random numbers: XLA draws them in an order of its own", sums=right is total
        )
    if not all(map(np.array_equal, whole.state, right.state)) and not whole.state_agrees(right, tolerance):
        return Trial(differs="it changes variables with every micro-batch", sums=right is total)
    return Trial(sums=right is total)


_WAYS = ((Recipe(), False), (Recipe(micro_batch=_PART), False), (Recipe(micro_batch=_PART), True))


@dataclass(frozen=True)
class _Outcome:
    """The loss, the gradients, and what the function's own variables were after it."""

    loss: float
    gradients: list[Any]
    state: list[Any]

    def agrees(self, other: "_Outcome", tolerance: float) -> bool:
        pairs = zip([self.loss, *self.gradients], [other.loss, *other.gradients], strict=True)
        return all(_agree(one, two, tolerance) for one, two in pairs)

    def state_agrees(self, other: "_Outcome", tolerance: float) -> bool:
        return all(_agree(one, two, tolerance) for one, two in zip(self.state, other.state, strict=True))


def _compute(loss: LossFunction, samples: Sequence[Any], recipe: Recipe, sums: bool) -> _Outcome:
    trial = copy.copy(loss)
    trial.seen, trial.jit_compile, trial.sums = Seen(), False, sums
    tensors = [tf.convert_to_tensor(array) for array in samples]
    specs = [
        tf.TensorSpec([None, *tensor.shape[1:]] if has else tensor.shape, tensor.dtype)
        for tensor, has in zip(tensors, loss.call.has_samples, strict=True)
    ]
    step = build_gradients(trial, recipe)
    with statistics_left_alone():
        trial.look(specs)
        step.trace(specs)
    step.note()
    try:
        found = step.compute(tensors, specs)
        state = [variable.numpy() for variable in trial.seen.changing]
    finally:
        step.undo()
    gradients = [
        None if gradient is None else np.asarray(tf.convert_to_tensor(gradient))
        for gradient in found.gradients
    ]
    return _Outcome(float(found.loss), gradients, state)


def _vary(array: Any, has_samples: bool) -> Any:
    """Returns other numbers, different for each sample: zeros among whole numbers, factors for others."""
    array = np.asarray(array)
    if not has_samples or array.dtype.kind not in "iubf":
        return array
    random = np.random.default_rng(0)
    if array.dtype.kind == "f":
        factors = random.uniform(0.5, 1.5, len(array)).astype(array.dtype)
        return array * factors.reshape(-1, *[1] * (array.ndim - 1))
    kept = random.random(array.shape) < np.linspace(0.2, 0.9, len(array)).reshape(-1, *[1] * (array.ndim - 1))
    return np.where(kept, array, np.zeros_like(array))


def _agree(one: Any, two: Any, tolerance: float) -> bool:
    if one is None or two is None:
        return one is two
    one, two = np.asarray(one, "float64"), np.asarray(two, "float64")
    scale = max(np.abs(one).max(initial=0), np.abs(two).max(initial=0))
    return one.shape == two.shape and bool(
        np.allclose(one, two, rtol=0, atol=tolerance * scale, equal_nan=True)
    )
