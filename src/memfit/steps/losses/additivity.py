"""Trying, on a few samples, whether the loss and the gradients of a function add up from parts of a batch.

A function says nothing of how its loss is made. So it is computed: once for some samples, once for the same samples
in parts, as a step would, in the trial that models have too (`micro_batches/trial.py`).
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import tensorflow as tf

from memfit.compat.keras_layers import statistics_left_alone
from memfit.errors import in_one_line
from memfit.steps.losses.call import CallSamples
from memfit.steps.losses.function import LossFunction, Seen
from memfit.steps.losses.step import Joined
from memfit.steps.micro_batches.batch import PartResult, Parts
from memfit.steps.micro_batches.samples import Part
from memfit.steps.micro_batches.sketches import COLUMNS, sketch
from memfit.steps.micro_batches.trial import (
    FEWER,
    SAMPLES,
    Outcome,
    agree,
    find_difference,
    half_of_digits,
    part_size,
    put_back,
)
from memfit.steps.micro_batches.varying import mix_labels, tell_apart, vary_samples


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
    for count in (SAMPLES, FEWER):
        few = loss.call.map_samples(itemgetter(slice(count)), samples)
        try:
            return _try(loss, few)
        except tf.errors.ResourceExhaustedError:
            continue
        except Exception as error:  # whatever a user's function raises
            return Trial(why_not=f"it could not be tried in micro-batches: {in_one_line(error)}")
    return Trial(why_not="it could not be tried in micro-batches: memory ran out for a few samples")


def _try(loss: LossFunction, samples: Sequence[Any]) -> Trial:
    step = _Step(loss, samples)
    tolerance = half_of_digits("bfloat16" if step.loss.seen.half else _coarsest(loss.values))
    as_mean = find_difference(step.in_both_ways(sums=False), _vary(loss, samples), loss.values, tolerance)
    sums = as_mean is not None
    if as_mean is not None and find_difference(
        step.in_both_ways(sums=True), _vary(loss, samples), loss.values, tolerance
    ):
        return Trial(why_not=f"its loss, or a gradient, does not add up over micro-batches ({as_mean.story})")
    if loss.seed_states and loss.jit_compile:
        return Trial(differs="other random numbers: XLA draws them in its own order", sums=sums)
    whole, parts = step.in_both_ways(sums)(samples)
    pairs = list(zip(whole.state, parts.state, strict=True))
    if not all(np.array_equal(*pair) or agree(*pair, tolerance) for pair in pairs):
        return Trial(differs="it changes variables with every micro-batch", sums=sums)
    return Trial(sums=sums)


def _vary(loss: LossFunction, samples: Sequence[Any]) -> list[Sequence[Any]]:
    """Returns samples as they are, and with other numbers; all tensors but the first are taken for labels, too."""
    first = next(place for place, has in enumerate(loss.call.has_samples) if has)
    mixed = [
        array if not has else (tell_apart if place == first else mix_labels)(array)
        for place, (array, has) in enumerate(zip(samples, loss.call.has_samples, strict=True))
    ]
    return [samples, loss.call.map_samples(vary_samples, samples), mixed]


def _coarsest(weights: Sequence[Any]) -> str:
    """The number format of weights that has the fewest digits."""
    return max((weight.dtype.name for weight in weights), key=half_of_digits, default="float32")


class _Step:
    """The gradients of a loss function, in parts of any size, in numbers that add up. It is traced once."""

    def __init__(self, loss: LossFunction, samples: Sequence[Any]) -> None:
        self.loss = copy.copy(loss)
        self.loss.seen, self.loss.jit_compile = Seen(), False
        tensors = list(map(tf.convert_to_tensor, samples))
        self._count = self.loss.call.count_samples(tensors)
        self._types = [tensor.dtype for tensor in tensors]
        specs = [
            tf.TensorSpec([None, *tensor.shape[1:]] if has else tensor.shape, tensor.dtype)
            for tensor, has in zip(tensors, loss.call.has_samples, strict=True)
        ]
        body = tf.autograph.experimental.do_not_convert(self._compute)
        with statistics_left_alone():
            self.loss.look(specs)
            function = tf.function(body, autograph=False)
            self._function = function.get_concrete_function(tf.TensorSpec([], tf.int32), *specs)

    def in_both_ways(self, sums: bool) -> Callable[[Sequence[Any]], tuple[Outcome, Outcome]]:
        """Returns what computes samples at once, and in parts whose losses add up, or are averaged."""

        def compute(samples: Sequence[Any]) -> tuple[Outcome, Outcome]:
            assert self._count is not None
            return self._run(samples, self._count, sums), self._run(samples, part_size(self._count), sums)

        return compute

    def _run(self, samples: Sequence[Any], size: int, sums: bool) -> Outcome:
        tensors = [tf.convert_to_tensor(*pair) for pair in zip(samples, self._types, strict=True)]
        changing = self.loss.seen.changing
        with put_back(changing):
            mean, total, gradients_of_mean, gradients = self._function(tf.constant(size), *tensors)
            state = tuple(variable.numpy() for variable in changing)
        if sums:
            return Outcome(float(total), gradients.numpy(), state=state)
        return Outcome(float(mean), gradients_of_mean.numpy(), state=state)

    def _compute(self, size: Any, *tensors: Any) -> Any:
        loss = self.loss
        Joined(loss)  # refuses outputs that cannot be joined

        def compute(part: Part) -> PartResult:
            with tf.GradientTape() as tape:
                value, _ = loss.compute(part.x)
            gradients = sketch(tape.gradient(value, loss.values), loss.values)
            value = tf.cast(value, tf.float64)
            return (value * part.fraction, value, gradients * part.fraction, gradients), []

        batch = Parts(CallSamples(loss.call, tensors), lambda _: size, loss)
        shapes: list[list[int]] = [[], [], *[[len(loss.values), COLUMNS]] * 2]
        return batch.fold(compute, tuple(tf.zeros(shape, tf.float64) for shape in shapes))[0]
