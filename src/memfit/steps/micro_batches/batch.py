"""A batch that is computed a part at a time: cutting it, and adding up what its parts give."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from memfit.compat import keras_training
from memfit.estimation.recording.step import JOINED
from memfit.steps.micro_batches.loss_shares import DivisorsUnknown, count_divisors
from memfit.steps.micro_batches.random_rows import Seeds, draw_rows_of_batch
from memfit.steps.micro_batches.samples import Fraction, Part, Samples, samples_of
from memfit.steps.share import Share
from memfit.steps.waiting import never

Sums = tuple[Any, ...]
PartResult = tuple[Sums, list[Any]]


class Collected(NamedTuple):
    """A tensor that every part gives beside the sums.

    Attributes:
        spec: What it is, its first dimension unknown.
        reduce: Makes one of all parts' tensors, stacked; None where they are put one behind the other.
    """

    spec: tf.TensorSpec
    reduce: Callable[..., Any] | None = None

    def gather(self, array: tf.TensorArray, *, apart: bool) -> Any:
        """Returns what becomes of the parts of a loop."""
        with tf.name_scope(JOINED):
            if self.reduce is not None:
                return self.reduce(array.stack(), 0)
            return tf.reshape(array.stack(), [-1, *self.spec.shape[1:]]) if apart else array.concat()

    def combine(self, gathered: Any, last: Any) -> Any:
        """Returns the same with one part more."""
        if self.reduce is not None:
            return self.reduce(tf.stack([gathered, last]), 0)
        return tf.concat([gathered, last], 0)


class Parts:
    """A batch in parts of `size` samples; one of them is shorter where the batch does not divide evenly.

    Args:
        batch: The samples.
        size: Samples in a part, or what gives them from the samples in the batch.
        owner: What is computed: a model, or a loss function. Its layers' seeds begin anew with every part.
        share: The samples' place in a larger batch, where they are one rank's share of it.
    """

    def __init__(
        self, batch: Samples, size: int | Callable[[Any], Any], owner: Any, share: Share | None = None
    ) -> None:
        self._batch, self._owner, self.share = batch, owner, share
        self.static_samples = batch.static_count
        self.samples = batch.count
        self._size_of = size if callable(size) else lambda samples: size

    def fold(
        self,
        compute: Callable[[Part], PartResult],
        zeros: Sums,
        rows: Sequence[Collected] = (),
        divisors: Any = None,
        written: Callable[[], Sequence[Any]] = tuple,
    ) -> PartResult:
        """Computes all parts.

        Args:
            compute: Called with a part; returns tensors to be added up and tensors to be collected.
            rows: What the tensors to be collected are.
            divisors: Those of the whole batch's losses, where they are known.
            written: Gives what the parts have written to variables so far.

        Returns:
            The sums, and the collected tensors.
        """
        # XLA wants parts of one size in a loop, so there a shorter last part comes after it.
        apart = bool(self._owner.jit_compile) and not tf.executing_eagerly()
        step = tf.minimum(self._size_of(self.samples), self.samples)
        count = self.samples // step if apart else (self.samples + step - 1) // step

        # XLA has random numbers of its own, in its own order; only a graph tells samples from other dimensions.
        seeds = None if apart or tf.executing_eagerly() else Seeds(self._owner)

        def one(start: Any, size: Any, sums: Sums) -> PartResult:
            if seeds is None:
                values, outputs = compute(self._cut(start, size, divisors))
            else:
                seeds.put_back()
                first = 0 if self.share is None else self.share.first.read_value()
                with draw_rows_of_batch(first + start, size):
                    values, outputs = compute(self._cut(start, size, divisors))
            return tuple(a + b for a, b in zip(sums, values, strict=True)), outputs

        def body(index: Any, sums: Sums, arrays: Sums) -> tuple[Any, Sums, Sums]:
            start = index * step
            sums, outputs = one(start, step if apart else tf.minimum(step, self.samples - start), sums)
            return index + 1, sums, tuple(a.write(index, b) for a, b in zip(arrays, outputs, strict=True))

        arrays = tuple(
            tf.TensorArray(spec.dtype, count, element_shape=spec.shape, infer_shape=False) for spec, _ in rows
        )
        _, sums, arrays = tf.while_loop(
            lambda index, *_: index < count,
            body,
            (tf.constant(0), zeros, arrays),
            parallel_iterations=1,  # parts that overlap in time would need the memory of several at once
        )
        joined = [each.gather(array, apart=apart) for array, each in zip(arrays, rows, strict=True)]
        if not apart:
            return sums, joined

        def with_rest() -> PartResult:
            # XLA computes at once what does not wait for anything, and removes a loop of one round.
            start = count * step + tf.cast(never([*sums, *written()]), tf.int32)
            total, outputs = one(start, self.samples - count * step, sums)
            return total, [each.combine(*pair) for each, *pair in zip(rows, joined, outputs, strict=True)]

        if self.static_samples is not None:
            even = self.static_samples % min(self._size_of(self.static_samples), self.static_samples) == 0
            return (sums, joined) if even else with_rest()
        # XLA knows the batch when it compiles, and of a case that is settled by then it compiles only that.
        result: PartResult = tf.switch_case(
            tf.minimum(self.samples - count * step, 1), [lambda: (sums, joined), with_rest]
        )
        return result

    def _cut(self, start: Any, size: Any, divisors: Any) -> Part:
        x, y, sample_weight = self._batch.part(start, size)
        if self.share is not None:
            return self.share.part(x, y, sample_weight, size)
        return Part(x, y, sample_weight, Fraction(size, self.samples), divisors)


class PartedBatch(Parts):
    """The same for a Keras model, whose losses may have to know a divisor of the whole batch.

    Args:
        data: What Keras gives to a step, `(x, y, sample_weight)` or less; or `Samples`.
        trains: Whether it is a step that needs metrics and the optimizer, which are built then.
    """

    def __init__(
        self,
        model: keras.Model,
        data: Any,
        size: int | Callable[[Any], Any],
        share: Share | None = None,
        *,
        trains: bool = True,
    ) -> None:
        super().__init__(samples_of(data), size, model, share)
        self._model = model
        keras_training.build(model, *self._batch.specs, losses_alone=not trains)

    def add_up(
        self,
        compute: Callable[[Part], PartResult],
        zeros: Sums,
        rows: Sequence[Collected] = (),
        written: Callable[[], Sequence[Any]] = tuple,
    ) -> PartResult:
        """Computes all parts, as `fold` does, with the divisors that their losses ask for."""
        if tf.executing_eagerly():
            # A trace can begin again when a loss turns out to need its divisor; an eager part has acted by then.
            return self.fold(compute, zeros, rows, self._divisors(), written)
        try:
            return self.fold(compute, zeros, rows, None, written)
        except DivisorsUnknown:
            return self.fold(compute, zeros, rows, self._divisors(), written)

    def _divisors(self) -> Any:
        """The divisors of the whole batch's losses, which need its masks but none of its activations.

        In a graph only what the masks depend on is run: the rest of this forward pass is dead code.
        """

        def count(part: Part) -> PartResult:
            with keras.StatelessScope():
                counts = count_divisors(self._model, part.x, part.y, part.sample_weight)
                return (tf.stack([count.noted for count in counts]),), []

        losses = len(keras_training.losses(self._model))
        zeros = tf.zeros([losses], tf.float64)
        return self.fold(count, (zeros,))[0][0] if losses else zeros
