"""What is stored in memory under XLA, which would rather compute an elementwise op once more for each reader."""

from collections.abc import Collection

from memfit.compat.tf_graphs import Op, Tensor, materialised
from memfit.steps.rematerialisation.rewrite.xla_order import ALONE
from memfit.steps.rematerialisation.trace import TensorId, Trace


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
