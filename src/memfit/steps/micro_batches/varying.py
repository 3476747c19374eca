"""The samples of a trial in parts: chosen from all over the data, then with other numbers in them."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import tensorflow as tf

# Of labels, at most so many columns and rows are looked at for values that the chosen samples lack.
_COLUMNS, _ROWS = 64, 200_000
# Which of three distinct labels each sample gets: equal and different ones within each part, and between parts.
_PATTERN = (0, 1, 0, 2, 1, 0, 2, 1)


def choose_rows(labels: Sequence[Any], rows: int, count: int) -> list[int]:
    """Returns the numbers of `count` samples from all over the data, in their order.

    The first ones of a data set may be of one class, or without an event. A column of the labels that has several
    values has two of them among the chosen.

    Args:
        labels: Arrays whose values matter.
        rows: How many samples there are.
    """
    if rows <= count:
        return list(range(rows))
    random = np.random.default_rng(0)
    bounds = np.linspace(0, rows, count + 1).astype(int)
    chosen = [int(random.integers(low, high)) for low, high in pairwise(bounds)]
    step = -(-rows // _ROWS)
    turn = 0
    for column in _columns(labels, rows):
        first = column[chosen[0]]
        if (column[chosen] != first).any():
            continue
        others = np.flatnonzero(column[::step] != first) * step
        for other in random.permutation(others[:_ROWS])[:2]:
            if int(other) not in chosen:
                # Two that are half of the batch apart lie in different parts.
                chosen[(turn // 2 + turn % 2 * (count // 2)) % count] = int(other)
                turn += 1
    return sorted(chosen)


def _columns(labels: Sequence[Any], rows: int) -> Iterator[Any]:
    for label in labels:
        array = np.asarray(label) if isinstance(label, np.ndarray | tf.Tensor) else np.zeros(0)
        if array.ndim and len(array) == rows and array.dtype.kind in "iubf" and array.size:
            flat = array.reshape(rows, -1)
            for number in range(0, flat.shape[1], -(-flat.shape[1] // _COLUMNS)):
                yield flat[:, number]


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


def tell_apart(array: Any) -> Any:
    """Returns an array in which no column is the same for all samples: zeros become ones, others zeros, in turn."""
    array = np.asarray(array)
    if array.dtype.kind not in "iubf" or not array.ndim or len(array) < 2:
        return array
    same = (array == array[:1]).all(0)
    swapped = np.where(array == 0, np.ones_like(array), np.zeros_like(array))
    turn = (np.arange(len(array)) % 2 == 1).reshape(-1, *[1] * (array.ndim - 1))
    return np.where(same & turn, swapped, array)


def mix_labels(array: Any) -> Any:
    """Returns labels of which several samples have the same, and others another; as far as they occur in it."""
    array = np.asarray(array)
    if array.dtype.kind not in "iubf" or not array.ndim or not len(array):
        return array
    flat = array.reshape(len(array), -1)
    distinct = np.sort(np.unique(flat, axis=0, return_index=True)[1])[:3]
    rows = [int(distinct[_PATTERN[i % len(_PATTERN)] % len(distinct)]) for i in range(len(array))]
    return tell_apart(array[rows])
