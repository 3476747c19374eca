"""The call of `fit` that a script was about to make: the model, and its data as an estimate takes it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from memfit.compat.tf_datasets import dataset_batch_size
from memfit.data.peeking import FirstBatch, first_batch, is_generator
from memfit.data.shapes import Shapes
from memfit.errors import CannotTell
from memfit.estimation.worst_batch import look_where_needed


@dataclass(frozen=True)
class FitCall:
    """The first fit() of a script: the model, and the arguments by their names in Keras."""

    model: Any
    arguments: dict[str, Any]

    @property
    def data(self) -> Any:
        """The training data in the form `estimate(data=...)` takes: a dataset as it is, arrays as a tuple."""
        x, y, weight = (self._x, *(self.arguments.get(name) for name in ("y", "sample_weight")))
        if weight is None and y is not None and self.arguments.get("class_weight"):
            weight = np.ones(1, "float32")  # Keras makes a sample weight of every class weight
        if y is None and weight is None:
            return x
        return (x, y) if weight is None else (x, y, weight)

    @property
    def batch_size(self) -> int:
        """Samples in a step: what fit() was given, what the dataset says, or Keras's default of 32."""
        given = self.arguments.get("batch_size")
        if given is not None:
            return int(given)
        if isinstance(self._x, Shapes):
            return max(shape[0][0] for shape in self._x.seen)
        if hasattr(self._x, "element_spec"):
            return dataset_batch_size(self._x) or 32
        return _size_of_first(self._x) or 32

    @cached_property
    def _x(self) -> Any:
        """The inputs; the shapes of all batches, or a first one, in place of what does not tell its shapes."""
        x: Any = self.arguments.get("x")
        if is_generator(x):
            return FirstBatch(next(x))  # the script will not read on
        try:
            shapes = look_where_needed(self.model, x)
        except CannotTell:
            shapes = None
        if shapes is not None:
            return shapes
        spec = getattr(x, "element_spec", None)
        if spec is None or (dataset_batch_size(x) is not None and _tells_shapes(spec)):
            return x
        return FirstBatch(next(iter(x)))


def _leaves(structure: Any) -> Iterator[Any]:
    if isinstance(structure, Mapping):
        structure = tuple(structure.values())
    if isinstance(structure, tuple | list):
        for part in structure:
            yield from _leaves(part)
    elif hasattr(structure, "shape"):
        yield structure


def _tells_shapes(element_spec: Any) -> bool:
    return all(leaf.shape.rank and None not in tuple(leaf.shape)[1:] for leaf in _leaves(element_spec))


def _size_of_first(data: Any) -> int | None:
    """The batch size of data that comes in batches, such as a `keras.utils.PyDataset`."""
    if data is None or hasattr(data, "shape") or isinstance(data, tuple | list | Mapping):
        return None
    if not hasattr(data, "__getitem__"):
        return None
    first = next(_leaves(first_batch(data)), None)
    return None if first is None else int(first.shape[0])
