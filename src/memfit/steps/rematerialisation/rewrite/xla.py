"""Order, storage and waiting under XLA, which knows no control dependencies: only data that flows."""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from memfit.compat.tf_graphs import Op, Tensor, materialised, together
from memfit.steps.rematerialisation.trace import TensorId, Trace
from memfit.steps.waiting import never

# What XLA computes in kernels of their own, from memory to memory.
ALONE = {
    *("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter", "MatMul", "BatchMatMulV2", "MaxPoolGrad"),
    *("DepthwiseConv2dNative", "DepthwiseConv2dNativeBackpropInput", "DepthwiseConv2dNativeBackpropFilter"),
    *("Conv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2"),
}
_STORED = ALONE | {"XlaOptimizationBarrier"}
# A tensor below this part of the largest is not waited for.
_SMALL = 1 / 200


class XlaOrder:
    """Lets ops wait for those before them.

    Without it XLA computes all of a segment again at its beginning, and filters' gradients at the end of the
    backward pass, with all that they read waiting. An op's smallest input and what was made before go through an
    optimization barrier together, and who reads either reads it behind the barrier: no kernel runs for that.
    XLA drops what no op reads behind a barrier, so only what is read later is waited for.

    Args:
        wanted: The ops whose outputs are read after the backward pass.
    """

    def __init__(self, trace: Trace, graph_ops: Sequence[Op], wanted: Sequence[Op]) -> None:
        self._trace, self._graph_ops = trace, graph_ops
        self._wanted = set(wanted)
        self._unread = Counter(tensor for index in trace.backward for tensor in set(trace.ops[index].inputs))
        self._large = _SMALL * max((size for op in trace.ops for size in op.sizes), default=0)
        self._not_awaited: list[TensorId] = []
        self._group: set[int] = set()  # forward ops that run again one after the other
        self._latest: dict[Any, Tensor] = {}

    def find_latest(self, tensor: Tensor) -> Tensor:
        """Returns what to read instead of a tensor."""
        return self._latest.get(tensor.ref(), tensor) if hasattr(tensor, "ref") else tensor

    def wait(self, index: int, inputs: list[Tensor]) -> None:
        """Replaces the inputs that the next op is to read."""
        op = self._trace.ops[index]
        inputs[:] = map(self.find_latest, inputs)
        again = index < self._trace.forward_count
        if again:
            first = not any(key[0] in self._group for key in op.inputs)
            # Where an op cannot wait, as the padding of the images, the next one has to.
            if not (first and op.reads_values) or self._wait(inputs):
                self._group.add(index)
        else:
            self._group.clear()
            if op.type in ALONE and op.reads_values:
                self._wait(inputs)
            self._unread.subtract(set(op.inputs))
            self._not_awaited += [
                (index, number)
                for number, size in enumerate(op.sizes)
                if size > self._large or op.type in ALONE or self._graph_ops[index] in self._wanted
            ]

    def _wait(self, inputs: list[Tensor]) -> bool:
        """Lets an input wait for what was made; false where none of them can."""
        number = find_smallest(inputs)
        if number is None or not (inputs[number].op.type in _STORED or _has_small_input(inputs)):
            return False
        read = {tensor.ref() for tensor in inputs}
        awaited = [
            tensor
            for key in self._not_awaited
            if (tensor := self._graph_ops[key[0]].outputs[key[1]]).dtype.is_floating
            and (self._unread[key] > 0 or tensor.op in self._wanted)
            and self.find_latest(tensor).ref() not in read
        ]
        self._not_awaited = []
        if awaited:
            inputs[number], *behind = together([inputs[number], *map(self.find_latest, awaited)])
            self._latest |= {tensor.ref(): now for tensor, now in zip(awaited, behind, strict=True)}
        return True


def find_smallest(inputs: Sequence[Tensor]) -> int | None:
    """Finds the smallest input that carries data; shapes do not, and must stay constants for XLA."""
    data = [
        number
        for number, tensor in enumerate(inputs)
        if tensor.op.type != "Const" and (tensor.dtype.is_floating or tensor.dtype.name in ("bool", "uint64"))
    ]
    return min(data, key=lambda number: _count_elements(inputs[number]), default=None)


def _count_elements(tensor: Tensor) -> int:
    """Counts the elements of a tensor; many where that is not known."""
    return 2**40 if tensor.shape.rank is None else math.prod(size or 2**20 for size in tensor.shape)


def _has_small_input(inputs: Sequence[Tensor]) -> bool:
    """Whether the smallest input is a weight or a scale, beside an activation."""
    sizes = sorted(_count_elements(tensor) for tensor in inputs if tensor.op.type != "Const")
    return len(sizes) > 1 and 8 * sizes[0] < sizes[-1]


class XlaStorage:
    """The kept tensors, and of those that are computed again the convolved and multiplied ones, stored under XLA.

    XLA fuses what is computed elementwise into all ops that read it, those of the backward pass included. Then what
    a kept tensor was computed from is in memory until the backward pass: a convolution's output and the skip beside
    each block's output (ResNet50: 1.8 GiB instead of 1.3). So it is with what is computed again: a convolution
    reads it from memory, and others compute it once more (1.33 GiB instead of 1.14).
    """

    def __init__(self, trace: Trace, kept: Collection[TensorId]) -> None:
        self._trace, self._kept = trace, kept
        self._stored: dict[TensorId, Tensor] = {}
        self._read_alone = {key for op in trace.ops if op.type in ALONE for key in op.inputs}

    def store_copy(self, index: int, copy: Op) -> list[Tensor]:
        """Returns what to read of a forward op that runs again."""
        if copy.type in ALONE:
            return list(copy.outputs)
        return [
            materialised(tensor)
            if (index, number) in self._read_alone and tensor.dtype.is_floating
            else tensor
            for number, tensor in enumerate(copy.outputs)
        ]

    def store_kept(self, key: TensorId, tensor: Tensor) -> Tensor:
        """Returns the tensor to read for an input: the stored one where it is kept, or an alias of one that is."""
        root = key
        while root[0] >= 0 and root not in self._kept and self._trace.ops[root[0]].is_alias:
            root = self._trace.source(root)
        if root not in self._kept or not tensor.dtype.is_floating:
            return tensor
        if key not in self._stored:
            self._stored[key] = materialised(tensor)
        return self._stored[key]


def build_flag(awaited: Sequence[Tensor]) -> Tensor:
    """Builds a boolean that is there when some tensors are.

    One element of what XLA computes elementwise or joins would wait for little of it, so it is stored first. So is
    the flag: each copy would have what it waited for in memory till it is computed itself.
    """
    return materialised(never([materialised(tensor) for tensor in awaited]))


def make_wait(inputs: list[Tensor], flag: Tensor) -> None:
    """Lets the smallest input that carries data wait for a flag; shapes must stay constants for XLA."""
    number = find_smallest(inputs)
    if number is None:
        return
    tensor = inputs[number]
    if tensor.dtype == tf.bool:
        inputs[number] = tf.logical_or(tensor, flag)
    elif tensor.dtype.is_floating:
        not_a_number = tf.constant(float("nan"), tensor.dtype)
        inputs[number] = tensor + tf.where(flag, not_a_number, tf.zeros([], tensor.dtype))
    else:
        inputs[number] = tensor + tf.cast(flag, tensor.dtype)
