"""A batch that is computed a part at a time: cutting it, and adding up what its parts give."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from memfit.budgets.errors import InvalidInput
from memfit.training import private_apis
from memfit.training.loss_shares import DivisorsUnknown, divisors_of_part
from memfit.training.parts import Fraction, Part

Sums = tuple[Any, ...]
Found = tuple[Sums, list[Any]]


class PartedBatch:
    """A batch in parts of `size` samples; one of them is shorter where the batch does not divide evenly.

    Args:
        model: A compiled model; what is missing of it is built.
        data: What Keras gives to a step: `(x, y, sample_weight)` or less.
        size: Samples in a part.
    """

    def __init__(self, model: keras.Model, data: Any, size: int) -> None:
        self._model, self._size = model, size
        self._data = keras.utils.unpack_x_y_sample_weight(data)
        private_apis.build(model, *self._data)
        leaves = [leaf for leaf in keras.tree.flatten(self._data) if leaf is not None]
        for leaf in leaves:
            if leaf.shape.rank == 0:
                raise InvalidInput(
                    "A batch can be cut into micro-batches only if everything in it has the samples as its "
                    "first dimension",
                    received=f"a scalar of {leaf.dtype.name} in the data",
                    remedy="Repeat the value for every sample, or fit without micro-batches",
                )
        self.static_samples = leaves[0].shape[0]
        self.samples = tf.shape(leaves[0])[0]

    def add_up(
        self, compute: Callable[[Part], Found], zeros: Sums, rows: Sequence[tf.TensorSpec] = ()
    ) -> Found:
        """Computes all parts.

        Args:
            compute: Called with a part; returns tensors to be added up and tensors to be put one behind the other.
            zeros: What adding up begins with.
            rows: What the tensors to be put one behind the other are, their first dimension unknown.

        Returns:
            The sums, and the joined tensors.
        """
        if tf.executing_eagerly():
            # A trace can begin again when a loss turns out to need its divisor; an eager part has acted by then.
            return self._fold(compute, zeros, rows, self._divisors())
        try:
            return self._fold(compute, zeros, rows, None)
        except DivisorsUnknown:
            return self._fold(compute, zeros, rows, self._divisors())

    def _divisors(self) -> Any:
        """The divisors of the whole batch's losses, which need its masks but none of its activations.

        In a graph only what the masks depend on is run: the rest of this forward pass is dead code.
        """

        def count(part: Part) -> Found:
            with keras.StatelessScope():
                return (divisors_of_part(self._model, part.x, part.y, part.sample_weight),), []

        return self._fold(count, (tf.zeros([len(private_apis.losses(self._model))]),), (), None)[0][0]

    def _fold(
        self, compute: Callable[[Part], Found], zeros: Sums, rows: Sequence[tf.TensorSpec], divisors: Any
    ) -> Found:
        # XLA wants parts of one size in a loop, so there the last part, which may be shorter, comes after it.
        apart = bool(self._model.jit_compile) and not tf.executing_eagerly()
        step = tf.minimum(self._size, self.samples)
        count = (self.samples + step - 1) // step - int(apart)

        def one(index: Any, sums: Sums, *, last: bool) -> Found:
            start = index * step
            size = tf.minimum(step, self.samples - start) if last else step
            values, found = compute(self._cut(start, size, divisors))
            return tuple(a + b for a, b in zip(sums, values, strict=True)), found

        def body(index: Any, sums: Sums, arrays: Sums) -> tuple[Any, Sums, Sums]:
            sums, found = one(index, sums, last=not apart)
            return index + 1, sums, tuple(a.write(index, b) for a, b in zip(arrays, found, strict=True))

        arrays = tuple(
            tf.TensorArray(spec.dtype, count, element_shape=spec.shape, infer_shape=False) for spec in rows
        )
        _, sums, arrays = tf.while_loop(
            lambda index, *_: index < count,
            body,
            (tf.constant(0), zeros, arrays),
            parallel_iterations=1,  # parts that overlap in time would need the memory of several at once
        )
        if not apart:
            return sums, [array.concat() for array in arrays]
        joined = [tf.reshape(a.stack(), [-1, *spec.shape[1:]]) for a, spec in zip(arrays, rows, strict=True)]
        sums, found = one(count, sums, last=True)
        return sums, [tf.concat([a, b], 0) for a, b in zip(joined, found, strict=True)]

    def _cut(self, start: Any, size: Any, divisors: Any) -> Part:
        x, y, sample_weight = keras.tree.map_structure(lambda t: _slice(t, start, size), self._data)
        return Part(x, y, sample_weight, Fraction(size, self.samples), divisors)


def _slice(tensor: Any, start: Any, size: Any) -> Any:
    if tensor is None:
        return None
    if isinstance(tensor, tf.RaggedTensor):
        return tensor[start : start + size]
    if isinstance(tensor, tf.SparseTensor):
        rest = tensor.dense_shape[1:]
        begin = tf.concat([[tf.cast(start, tf.int64)], tf.zeros_like(rest)], 0)
        return tf.sparse.slice(tensor, begin, tf.concat([[tf.cast(size, tf.int64)], rest], 0))
    rest = tf.shape(tensor)[1:]
    part = tf.slice(tensor, tf.concat([[start], tf.zeros_like(rest)], 0), tf.concat([[size], rest], 0))
    part.set_shape([None, *tensor.shape[1:]])
    return part
