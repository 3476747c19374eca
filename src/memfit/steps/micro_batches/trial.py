"""Trying whether a computation gives the same in parts of a batch: its loss, its gradients, its outputs.

Each trial computes a few samples in one batch and in parts. What depends on the other samples of a batch can hide:
in samples that are alike, behind a weight that is zero at first, under a sum that happens to be the same. So there
are several trials: with samples from all over the data and with other numbers in them, with the weights as they are
and moved a little. Nothing stays changed.

What is rounding: half of the digits of the number format (3e-4 for float32), as a part of a gradient's norm. A sum
of thousands of terms loses fewer, and what depends on other samples shows in more. A gradient may besides be off by
100 roundings of the largest one: one that would be zero, as of a bias before a normalisation, is nothing but
rounding. And where a ReLU's input is zero, or two maxima are equal, but for the last digit, rounding decides; that
does not happen again with other weights, so a difference counts if it is there for two sets of them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

# Samples that are tried, in three parts; fewer where memory runs out.
SAMPLES, FEWER = 8, 3

_ROUNDINGS = 100  # of the largest gradient, that a sum of such may be off by
# How far weights are moved, as a part of each, or by itself where they are as good as zero: a gate opens.
_MOVED = 0.1
_CLOSED = 0.01
_OUTPUT_TOLERANCE = (
    1e-3  # far above float32 rounding, far below what another mask of a dropout makes of an output
)

# Binary digits of a number behind its first one, by format.
_DIGITS = {"bfloat16": 7, "float16": 10, "float32": 23, "float64": 52}

OUTPUTS = "a sample's output depends on the samples it is batched with, or on other random numbers"


@dataclass(frozen=True)
class Outcome:
    """What a batch gives, at once or from its parts.

    Attributes:
        loss: Its loss.
        gradients: The sketch of the gradients, a row for each weight.
        outputs: Sums over the samples of what depends on their outputs, the first of them no less than the others.
        state: What the variables that it changes are afterwards.
    """

    loss: float
    gradients: Any
    outputs: Any = 0.0
    state: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Difference:
    """How a few samples in one batch differ from the same in parts.

    Attributes:
        story: In a few words.
        in_outputs: Whether the outputs differ already.
    """

    story: str
    in_outputs: bool = False


# Computes some samples at once, and in parts.
Compute = Callable[[Any], tuple[Outcome, Outcome]]


def find_difference(
    compute: Compute, variants: Sequence[Any], weights: Sequence[Any], tolerance: float
) -> Difference | None:
    """Returns how parts of a batch give something else than the batch, or None.

    Args:
        compute: What is tried.
        variants: Samples: real ones first, then such with other numbers, which may be invalid.
        weights: TensorFlow's variables that are trained.
        tolerance: What of a result may be rounding.

    Raises:
        Exception: What `compute` raises with real samples, or where memory runs out.
    """
    with unoptimised():
        return _find_difference(compute, variants, weights, tolerance)


def _find_difference(
    compute: Compute, variants: Sequence[Any], weights: Sequence[Any], tolerance: float
) -> Difference | None:
    # What is real comes last, too: all other numbers may have been invalid.
    tries = [(variants[0], False), *((samples, True) for samples in (*variants[1:], variants[0]))]
    finite = False
    for number, (samples, move) in enumerate(tries):
        try:
            with moved(weights, number if move else None):
                whole, parts = compute(samples)
            difference = _compare(whole, parts, weights, tolerance)
            finite = finite or bool(np.isfinite(whole.loss))
            if difference is None:
                continue
            with moved(weights, number + len(tries)):
                again = _compare(*compute(samples), weights, tolerance)
        except tf.errors.ResourceExhaustedError:
            raise
        except Exception:  # other numbers may be invalid to it
            if number == 0:
                raise
            continue
        if again is not None:
            return difference
    return None if finite else Difference("its loss is no finite number, and could not be tried in parts")


def _compare(whole: Outcome, parts: Outcome, weights: Sequence[Any], tolerance: float) -> Difference | None:
    """Returns how two outcomes differ by more than rounding, or None."""
    if not agree(whole.outputs, parts.outputs, max(tolerance, _OUTPUT_TOLERANCE)):
        return Difference(OUTPUTS, in_outputs=True)
    if not agree(whole.loss, parts.loss, tolerance):
        return Difference(
            f"a few samples have a loss of {whole.loss:.4g} in one batch and {parts.loss:.4g} in parts"
        )
    norms = np.maximum(whole.gradients[:, -1], parts.gradients[:, -1])
    noise = _ROUNDINGS * tolerance**2 * norms[np.isfinite(norms)].max(initial=0)
    pairs = zip(weights, norms, whole.gradients[:, :-1], parts.gradients[:, :-1], strict=True)
    for weight, norm, one, two in pairs:
        if not agree(one, two, 0.0, tolerance * norm + noise if np.isfinite(norm) else noise):
            name = getattr(weight, "path", weight.name).partition(":")[0]
            return Difference(f"a few samples have another gradient of {name} in one batch than in parts")
    return None


@contextmanager
def moved(weights: Sequence[Any], seed: int | None) -> Iterator[None]:
    """Lets weights be a little different, everywhere and at random; exactly what they were afterwards.

    Args:
        seed: Of the random numbers; None to leave the weights as they are.
    """
    moving = [] if seed is None else [weight for weight in weights if weight.dtype.is_floating]
    random = np.random.default_rng(seed)
    with put_back(moving):
        for weight in moving:
            weight.assign(_move(weight.read_value(), random))
        yield


@contextmanager
def unoptimised() -> Iterator[None]:
    """Lets functions run as they are traced: TensorFlow takes seconds to improve one that runs a few times."""
    before = tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": before})


@contextmanager
def put_back(variables: Sequence[Any]) -> Iterator[None]:
    """Lets variables be what they were, whatever is assigned to them meanwhile.

    What is read of a variable shares its buffer, and what is assigned has another: putting it back copies nothing.
    """
    values = [variable.read_value() for variable in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


def agree(one: Any, two: Any, tolerance: float, noise: float = 0.0) -> bool:
    """Says whether two results, numbers or arrays, are the same but for rounding.

    Where one is infinite or not a number, the other has to be the same.

    Args:
        tolerance: As a part of the largest finite value of both.
        noise: How far they may be apart besides.
    """
    one, two = np.asarray(one, "float64"), np.asarray(two, "float64")
    if one.shape != two.shape:
        return False
    finite = np.isfinite(one) & np.isfinite(two)
    scale = max(np.abs(one[finite]).max(initial=0), np.abs(two[finite]).max(initial=0))
    return bool(np.allclose(one, two, rtol=0, atol=tolerance * scale + noise, equal_nan=True))


def half_of_digits(dtype: str) -> float:
    """Returns the relative difference of results that are the same but for rounding."""
    return float(2.0 ** (-_DIGITS.get(dtype, _DIGITS["float32"]) / 2))


def part_size(count: int) -> int:
    """Samples in a part: parts of unequal size show a sum as well as a mean of means."""
    return -(-count * 3 // 8)


def _move(value: Any, random: np.random.Generator) -> Any:
    shape = tuple(value.shape)
    if float(tf.reduce_max(tf.abs(value)) if value.shape.num_elements() else 0) < _CLOSED:
        return value + tf.cast(_MOVED * random.random(shape, dtype="float32"), value.dtype)
    # A factor for each row and one for each column: signs stay what they are, and nothing of that size is drawn.
    for factors in ((shape[-1:]), (*shape[:-1], 1)) if shape else ((),):
        value *= tf.cast(1 + _MOVED * random.uniform(-1, 1, factors), value.dtype)
    return value
