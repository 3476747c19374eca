"""Keeping the ops of a backward pass in order under XLA, which knows no order but that in which data flows."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from memfit.compat.tf_graphs import Op, Tensor, together
from memfit.steps.rematerialisation.trace import TensorId, Trace

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
    """

    def __init__(self, trace: Trace, graph_ops: Sequence[Op], wanted: Sequence[Op]) -> None:
        """Starts before the first op.

        Args:
            trace: The forward and backward ops.
            graph_ops: The same as TensorFlow has them.
            wanted: The ops whose outputs are read after the backward pass.
        """
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
            if (tensor := self._output(key)).dtype.is_floating
            and (self._unread[key] > 0 or tensor.op in self._wanted)
            and self.find_latest(tensor).ref() not in read
        ]
        self._not_awaited = []
        if awaited:
            inputs[number], *behind = together([inputs[number], *map(self.find_latest, awaited)])
            self._latest |= {tensor.ref(): now for tensor, now in zip(awaited, behind, strict=True)}
        return True

    def _output(self, key: TensorId) -> Tensor:
        return self._graph_ops[key[0]].outputs[key[1]]


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
