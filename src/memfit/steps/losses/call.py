"""How a function is called: where its tensors go, and which of them have a row for every sample."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from memfit.steps.micro_batches.samples import Samples, slice_samples

_TENSORS = (tf.Tensor, tf.RaggedTensor, tf.SparseTensor, tf.TensorSpec, np.ndarray, np.generic)


@dataclass(frozen=True)
class Call:
    """The arguments of a call without the numbers in its tensors.

    Attributes:
        key: The same for calls that differ in tensors alone.
        has_samples: For each tensor whether its first dimension is that of the samples: a batch is cut there.
        structure: The arguments as they are nested, None in the places of tensors.
        places: Those places, by their number among all arguments.
    """

    key: str
    has_samples: tuple[bool, ...]
    structure: Any = field(compare=False)
    places: tuple[int, ...] = field(compare=False)

    def pack(self, tensors: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns positional and keyword arguments with these tensors in their places."""
        leaves = tf.nest.flatten(self.structure)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = tf.nest.pack_sequence_as(self.structure, leaves)
        return args, kwargs

    def map_samples(self, function: Callable[[Any], Any], tensors: Any) -> tuple[Any, ...]:
        """Returns what a function makes of each tensor that has samples; the others stay as they are."""
        pairs = zip(tensors, self.has_samples, strict=True)
        return tuple(function(tensor) if has else tensor for tensor, has in pairs)

    def count_samples(self, tensors: Any) -> int | None:
        """Returns how many samples there are; None where the graph does not know it, or nothing has any."""
        sizes = [tensor.shape[0] for tensor, has in zip(tensors, self.has_samples, strict=True) if has]
        return None if not sizes or sizes[0] is None else int(sizes[0])


def read_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Call, tuple[Any, ...]]:
    """Separates the tensors of a call from how they are nested, and from what is no tensor.

    The samples are the first dimension of the first tensor that has dimensions; a tensor with another first
    dimension, such as a weight for each class, is the same for all parts of a batch.
    """
    flat = tf.nest.flatten((args, kwargs))
    places = tuple(place for place, leaf in enumerate(flat) if isinstance(leaf, _TENSORS))
    tensors = tuple(
        tf.convert_to_tensor(flat[place]) if isinstance(flat[place], np.ndarray | np.generic) else flat[place]
        for place in places
    )
    ranked = [tensor for tensor in tensors if tensor.shape.rank]
    has_samples = tuple(
        bool(tensor.shape.rank) and tensor.shape[0] == ranked[0].shape[0] for tensor in tensors
    )
    leaves = [None if place in places else leaf for place, leaf in enumerate(flat)]
    marked = ["tensor" if place in places else repr(leaf) for place, leaf in enumerate(flat)]
    structure = tf.nest.pack_sequence_as((args, kwargs), leaves)
    key = f"{tf.nest.pack_sequence_as(structure, marked)} {has_samples}"
    return Call(key, has_samples, structure, places), tensors


class CallSamples(Samples):
    """The tensors of a call as samples."""

    def __init__(self, call: Call, tensors: tuple[Any, ...]) -> None:
        self._call, self._tensors = call, tensors
        first = next(tensor for tensor, has in zip(tensors, call.has_samples, strict=True) if has)
        self.static_count = first.shape[0]
        self.count = tf.shape(first)[0]

    def whole(self) -> Any:
        """Returns all tensors."""
        return self._tensors

    def part(self, start: Any, size: Any) -> tuple[Any, Any, Any]:
        """Cuts some samples out of the tensors that have samples."""
        cut = self._call.map_samples(lambda tensor: slice_samples(tensor, start, size), self._tensors)
        return cut, None, None
