"""The gradients of one step, kept where a failure of the update cannot reach them."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from memfit.compat.tf_graphs import make_variable, run_after
from memfit.estimation.recording.kept import size_of
from memfit.steps.micro_batches.rows import Kind, Piece, Rows, add_up_rows, rows_of

if TYPE_CHECKING:
    from memfit.steps.share import Communicator

LEAST_PACK = 2**20  # bytes of gradients that are added up at once, however small each is


class GradientShelf:
    """Holds the gradients between the function that computes them and the function that applies them.

    Assigning a tensor to a variable takes over its buffer, so that nothing is copied; assigning an empty tensor
    gives it back, gradient by gradient, as the update no longer needs them.

    Where large tensors hardly find room that is not enough: gradients stay where they were computed, among those
    large tensors, until the update. In buffers of their own, which are there before the step, they lie together.

    Where an update finds no room among gradients, they can be moved to the host's memory, as they are to the last
    bit; it then takes them from there one by one.

    Args:
        own_buffers: Whether gradients are added to zeros in buffers of their own; those of embeddings never are.
    """

    def __init__(self, *, own_buffers: bool = False) -> None:
        self.own_buffers = own_buffers
        self._buffers: dict[int, tuple[tf.Variable, ...]] = {}
        self._shapes: dict[int, Any] = {}
        self.weights: list[Any] = []  # of the gradients that were put here last, those without one among them
        self._kinds: dict[int, list[Kind]] = {}
        self._on_host: dict[int, Any] | None = None  # NumPy arrays, by their buffers

    def put(self, gradients: Sequence[Any], weights: Sequence[Any]) -> None:
        """Takes the gradients of a step; some of them may be None."""
        self.weights = list(weights)
        added: dict[Any, Any] = {}  # the ops that add gradients to their buffers, by those that compute them
        for weight, gradient in zip(weights, gradients, strict=True):
            if gradient is None:
                continue
            rows = isinstance(gradient, tf.IndexedSlices)
            if rows:
                gradient = rows_of(gradient, weight.shape)
                self._kinds[id(weight)] = gradient.kinds
            parts = [part for piece in gradient.pieces for part in piece] if rows else [gradient]
            for buffer, part in zip(self._buffers_of(weight, parts), parts, strict=True):
                if self.own_buffers and not rows:
                    done = buffer.assign_add(part, read_value=False)
                    if len(weight.shape) > 1 and not tf.executing_eagerly():
                        added[part.op] = done
                else:
                    buffer.assign(part)
        # Each is added before the next is computed: an executor with a fixed order may leave all adding to the end.
        for op, after in pairwise(_from_the_last(list(added))):
            run_after(after, added[op])

    def read(self, weight: Any) -> Any:
        """The gradient of a weight, or None."""
        parts = [self._read_buffer(buffer) for buffer in self._buffers.get(id(weight), ())]
        if not parts:
            return None
        if len(parts) == 1:
            parts[0].set_shape(weight.shape)
            return parts[0]
        pieces = [Piece(*pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
        for values, indices in pieces:
            values.set_shape([None, *weight.shape[1:]])
            indices.set_shape([None])
        return Rows(pieces, self._kinds[id(weight)], weight.shape)

    def move_to_host(self) -> None:
        """Moves all gradients to the host's memory, if they are not there; `take_places` ends that."""
        if self._on_host:
            return
        self._on_host = {}
        for buffer in self.buffers():
            # Copied: on the CPU the array would share the buffer that is to be freed.
            self._on_host[id(buffer)] = np.array(buffer.numpy())
            buffer.assign(empty(buffer.dtype))

    def let_go_of_host(self) -> None:
        """Frees the host's memory, once an update has taken all from there."""
        if self._on_host is not None:
            self._on_host.clear()

    def take_places(self) -> None:
        """Takes the buffers again that gradients are added to, where they were given up for an update."""
        if self._on_host is None:
            return
        for number, buffers in self._buffers.items():
            if self._has_places(buffers):
                buffers[0].assign(zeros(self._shapes[number], buffers[0].dtype))
        self._on_host = None

    def sum_over(self, ranks: "Communicator") -> None:
        """Makes of every gradient its sum over all ranks, in the place of the rank's own.

        One pack after the other: beside the gradients there are only the copies of one.
        """
        done: list[Any] = []
        there = [weight for weight in self.weights if id(weight) in self._buffers]
        for pack in pack_up([weight for weight in there if id(weight) not in self._kinds]):
            with tf.control_dependencies(done):
                gradients = [self.read(weight) for weight in pack]
            totals = sum_pack(ranks, gradients)
            buffers = [self._buffers[id(weight)][0] for weight in pack]
            done = [a.assign(b, read_value=False) for a, b in zip(buffers, totals, strict=True)]
        for weight in there:
            if id(weight) not in self._kinds:
                continue
            with tf.control_dependencies(done):
                rows = self.read(weight)
            totals = [_sum_rows(ranks, *pair) for pair in zip(rows.pieces, rows.kinds, strict=True)]
            parts = [part for piece in totals for part in piece]
            pairs = zip(self._buffers[id(weight)], parts, strict=True)
            done = [buffer.assign(part, read_value=False) for buffer, part in pairs]

    def put_nothing(self) -> None:
        """Takes the gradients of no sample: zeros, and no rows."""
        for weight in self.weights:
            kinds = self._kinds.get(id(weight), ())
            for number, buffer in enumerate(self._buffers.get(id(weight), ())):
                if not kinds:
                    buffer.assign(zeros(weight.shape, buffer.dtype))
                else:
                    buffer.assign(zeros([0] if number % 2 else [0, *weight.shape[1:]], buffer.dtype))

    def buffers(self) -> list[tf.Variable]:
        """The variables that hold the gradients."""
        return [buffer for buffers in self._buffers.values() for buffer in buffers]

    def clear(self) -> list[Any]:
        """Frees all gradients; those in buffers of their own become zeros again, one after the other.

        Each buffer is freed and taken again at once, so that it is found where it was. What was given up for an
        update is taken again by `take_places`, as that may fail.

        Returns:
            The last op.
        """
        last: list[Any] = []
        nothing = empties(self.buffers())
        for number, buffers in self._buffers.items():
            for buffer in buffers:
                with tf.control_dependencies(last):
                    last = [buffer.assign(nothing[buffer.dtype], read_value=False)]
                if self._has_places(buffers) and self._on_host is None:
                    with tf.control_dependencies(last):
                        last = [buffer.assign(zeros(self._shapes[number], buffer.dtype), read_value=False)]
        return last

    def _has_places(self, buffers: Sequence[Any]) -> bool:
        """Whether a gradient is added to a buffer of its own; the rows of an embedding are not."""
        return self.own_buffers and len(buffers) == 1

    def _read_buffer(self, buffer: tf.Variable) -> Any:
        """Reads a part of a gradient where it is; from the host not before an op needs it."""
        if self._on_host is None:
            return buffer.read_value()

        def fetch(_: Any) -> Any:
            assert self._on_host is not None
            return self._on_host[id(buffer)]

        # It reads the buffer, too, or TensorFlow might take it for a constant.
        return tf.numpy_function(fetch, [buffer.read_value()], buffer.dtype, stateful=False)

    def _buffers_of(self, weight: Any, parts: Sequence[Any]) -> tuple[tf.Variable, ...]:
        known = self._buffers.get(id(weight))
        if known is None or len(known) != len(parts):
            own = self.own_buffers and len(parts) == 1
            self._shapes[id(weight)] = weight.shape
            with tf.init_scope(), tf.device(weight.value.device):
                self._buffers[id(weight)] = known = tuple(
                    make_variable(zeros(weight.shape, part.dtype) if own else empty(part.dtype))
                    for part in parts
                )
        return known


def _from_the_last(ops: Sequence[Any]) -> list[Any]:
    """Returns the ops in an order in which they can run, those of the last weights as early as can be."""
    position: dict[Any, int] = {}
    begun: set[Any] = set()
    for op in reversed(ops):
        waiting = [(op, False)]
        while waiting:
            one, inputs_done = waiting.pop()
            if inputs_done:
                position[one] = len(position)
            elif one not in begun:
                begun.add(one)
                before = [*(tensor.op for tensor in one.inputs), *one.control_inputs]
                waiting += [(one, True), *((other, False) for other in before if other not in begun)]
    return sorted(ops, key=position.__getitem__)


def pack_up(weights: Sequence[Any]) -> list[list[Any]]:
    """Puts small weights together, to exchange what belongs to them at once: each exchange takes milliseconds.

    A pack is copied twice more than a gradient by itself, so it has at most half of the largest gradient.
    """
    sizes = list(map(size_of, weights))
    limit = max(LEAST_PACK, max(sizes, default=0) // 2)
    packs: list[list[Any]] = []
    left = 0
    for weight, size in zip(weights, sizes, strict=True):
        if size > left or packs[-1][-1].dtype != weight.dtype:
            packs.append([])
            left = limit
        packs[-1].append(weight)
        left -= size
    return packs


def sum_pack(ranks: "Communicator", tensors: Sequence[Any]) -> Sequence[Any]:
    """Returns the sums of some tensors over all ranks, by one exchange."""
    if len(tensors) == 1:
        return ranks.sum(tensors)
    flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
    parts = tf.split(ranks.sum([flat])[0], [tensor.shape.num_elements() for tensor in tensors])
    return [tf.reshape(part, tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def _sum_rows(ranks: "Communicator", piece: Piece, kind: Kind) -> Piece:
    """Returns the rows that the samples of all ranks give, in the samples' order."""
    if not kind.of_samples:  # the same rows on every rank
        return Piece(ranks.sum([piece.values])[0], piece.indices)
    joined = Piece(ranks.joined(piece.values), ranks.joined(piece.indices))
    return add_up_rows(*joined) if kind.once else joined


def zeros(shape: Any, dtype: Any) -> Any:
    """Zeros that TensorFlow's optimizer does not turn into a constant, which would stay in memory."""
    return tf.raw_ops.Empty(shape=list(shape), dtype=dtype, init=True)


def empty(dtype: Any) -> Any:
    """An empty tensor."""
    return tf.zeros([0], dtype)


def empties(variables: Iterable[tf.Variable]) -> dict[Any, Any]:
    """An empty tensor for each of the variables' types: one op serves all that are freed."""
    return {dtype: empty(dtype) for dtype in dict.fromkeys(variable.dtype for variable in variables)}
