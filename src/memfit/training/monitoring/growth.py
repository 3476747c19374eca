"""Telling a leak from a start: memory that grows steadily, epoch after epoch, and what grows with it."""

import gc
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from memfit.compat.tf_graphs import is_concrete_function, is_eager_tensor
from memfit.sizes import Size

# Growth in each of four epochs in a row is a leak; the first epoch, which traces and fills caches, is left out.
EPOCHS = 4
# What one epoch must add at least: the host's figure moves by pages of many allocators, the device's is exact.
_LEAST = {"host": 1 << 20, "device": 256 << 10}
# Caches that fill up grow less and less; a leak's smallest step is not far below its largest.
_STEADY = 1 / 3


@dataclass(frozen=True)
class Growth:
    """Memory that grows steadily.

    Attributes:
        where: "host" or "device".
        per_epoch: Bytes it grows by in an epoch.
        epochs: For how many epochs in a row it has been growing.
        what: What grows with it, largest first; empty where no Python object does.
    """

    where: str
    per_epoch: Size
    epochs: int
    what: tuple[str, ...]

    def __str__(self) -> str:
        with_it = ", ".join(self.what) or "no Python object: look at native code and tf.data (memfit lint)"
        grew = f"{self.where} memory grew by {self.per_epoch} an epoch, {self.epochs} epochs in a row"
        return f"{grew}; with it {with_it}"


@dataclass(frozen=True)
class Census:
    """What Python holds.

    Attributes:
        arrays: Bytes of NumPy arrays in containers.
        tensors: Bytes of TensorFlow tensors in containers.
        functions: Traced functions: one more for every retracing.
        objects: Everything that Python's collector knows.
    """

    arrays: int
    tensors: int
    functions: int
    objects: int


def find_steady_growth(where: str, sizes: Sequence[int]) -> tuple[int, int] | None:
    """Returns how much memory grows in an epoch and for how many epochs it has, or None where it does not leak.

    Args:
        sizes: Bytes in use at the end of each epoch, the first one included.

    Example:
        >>> find_steady_growth("device", [0, 10_000_000, 20_000_000, 30_000_000, 40_000_000, 50_000_000])
        (10000000, 4)
    """
    steps = [after - before for before, after in pairwise(sizes[1:])]
    run = 0
    for step in reversed(steps):
        if step < _LEAST[where]:
            break
        run += 1
    last = steps[len(steps) - run :]
    if run < EPOCHS or min(last[-EPOCHS:]) < _STEADY * max(last[-EPOCHS:]):
        return None
    return sum(last) // run, run


def take_census() -> Census:
    """Counts what Python holds; it takes some tenths of a second in a large program."""
    objects = gc.get_objects()
    arrays: dict[int, int] = {}
    tensors: dict[int, int] = {}
    functions = 0
    for thing in objects:
        if is_concrete_function(thing):
            functions += 1
        elif isinstance(thing, list | tuple | set):
            _weigh(thing, arrays, tensors)
        elif isinstance(thing, dict):
            _weigh(_values(thing), arrays, tensors)
    return Census(sum(arrays.values()), sum(tensors.values()), functions, len(objects))


def _values(thing: dict[Any, Any]) -> list[Any]:
    try:
        return list(thing.values())
    except RuntimeError:  # another thread changed it meanwhile
        return []


def _weigh(things: Iterable[Any], arrays: dict[int, int], tensors: dict[int, int]) -> None:
    for thing in tuple(things):
        kind = type(thing)
        if kind is np.ndarray:
            # A view holds its base, whatever part of it the view shows.
            base = thing if thing.base is None or not isinstance(thing.base, np.ndarray) else thing.base
            arrays[id(base)] = base.nbytes
        elif is_eager_tensor(thing):
            tensors[id(thing)] = thing.dtype.size * (thing.shape.num_elements() or 0)


def describe_growth(before: Census, after: Census, epochs: int) -> tuple[str, ...]:
    """Returns what grew between two counts, as figures per epoch, largest first."""
    sizes = [
        ((after.arrays - before.arrays) // epochs, "NumPy arrays"),
        ((after.tensors - before.tensors) // epochs, "TensorFlow tensors"),
    ]
    told = [
        f"{Size(size)} of {name} an epoch"
        for size, name in sorted(sizes, reverse=True)
        if size >= _LEAST["device"]
    ]
    functions = (after.functions - before.functions) / epochs
    if functions >= 1:
        told.append(f"{functions:.0f} more traced functions an epoch (something is traced again and again)")
    objects = (after.objects - before.objects) // epochs
    if objects >= 10_000:
        told.append(f"{objects:,} more Python objects an epoch")
    return tuple(told)
