"""A batch that is computed a part at a time: cutting it, and adding up what its parts give."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from memfit.budgets.errors import InvalidInput
from memfit.training import private_apis
from memfit.training.loss_shares import DivisorsUnknown, divisors_of_part
from memfit.training.parts import Fraction, Part

Sums = tuple[Any, ...]


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

    def add_up(self, compute: Callable[[Part], Sums], zeros: Sums) -> Sums:
        """Returns the sums, over all parts, of the tensors that `compute` returns for a part."""
        if tf.executing_eagerly():
            # A trace can begin again when a loss turns out to need its divisor; an eager part has acted by then.
            return self._fold(compute, zeros, self._divisors())
        try:
            return self._fold(compute, zeros, None)
        except DivisorsUnknown:
            return self._fold(compute, zeros, self._divisors())

    def _divisors(self) -> Any:
        """The divisors of the whole batch's losses, which need its masks but none of its activations.

        In a graph only what the masks depend on is run: the rest of this forward pass is dead code.
        """
        losses = private_apis.losses(self._model)

        def count(part: Part) -> Sums:
            with keras.StatelessScope():
                return (divisors_of_part(self._model, part.x, part.y, part.sample_weight),)

        return self._fold(count, (tf.zeros([len(losses)]),), None)[0]

    def _fold(self, compute: Callable[[Part], Sums], zeros: Sums, divisors: Any) -> Sums:
        # XLA wants parts of one size in a loop, so there the last part, which may be shorter, comes after it.
        apart = self._model.jit_compile and not tf.executing_eagerly()
        step = tf.minimum(self._size, self.samples)
        count = (self.samples + step - 1) // step - int(apart)

        def add(index: Any, sums: Sums, *, last: bool) -> tuple[Any, Sums]:
            start = index * step
            size = tf.minimum(step, self.samples - start) if last else step
            values = compute(self._cut(start, size, divisors))
            return index + 1, tuple(a + b for a, b in zip(sums, values, strict=True))

        _, sums = tf.while_loop(
            lambda index, _: index < count,
            lambda index, sums: add(index, sums, last=not apart),
            (tf.constant(0), zeros),
            parallel_iterations=1,  # parts that overlap in time would need the memory of several at once
        )
        return add(count, sums, last=True)[1] if apart else sums

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
