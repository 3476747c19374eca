"""What trials in parts share: other numbers in the samples, and how far apart equal results may be."""

from typing import Any

import ml_dtypes
import numpy as np


def vary_samples(array: Any) -> Any:
    """Returns other numbers, different for each sample: zeros among whole numbers, factors for others.

    A loss that is divided by a sum of weights, by what a mask leaves, or by the size of what it compares may add up
    by chance, or to a few digits, where all samples are alike.
    """
    array = np.asarray(array)
    if array.dtype.kind not in "iubf" or not array.ndim:
        return array
    random = np.random.default_rng(0)
    if array.dtype.kind == "f":
        factors = random.uniform(0.5, 1.5, len(array)).astype(array.dtype)
        return array * factors.reshape(-1, *[1] * (array.ndim - 1))
    kept = random.random(array.shape) < np.linspace(0.2, 0.9, len(array)).reshape(-1, *[1] * (array.ndim - 1))
    return np.where(kept, array, np.zeros_like(array))


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
    """Returns the relative difference of results that are the same but for rounding.

    Half of the digits: a sum of some thousand terms loses fewer, and a loss that is no mean agrees in fewer.
    """
    return float(ml_dtypes.finfo(dtype).eps) ** 0.5  # type: ignore[no-untyped-call]
