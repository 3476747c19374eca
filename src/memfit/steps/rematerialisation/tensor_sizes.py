"""How large the tensors of a graph are, also where the graph does not know the batch: `fit` traces such steps."""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from memfit.compat.tf_graphs import Op, Tensor

# Their output is their input's buffer.
ALIASES = {"Identity", "IdentityN", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient"}
# Which input of an op tells the shape of its output, or the axes to sum over.
_SHAPE_INPUT = {
    "Sum": 1,
    "BroadcastTo": 1,
    "Fill": 0,
    "Conv2DBackpropInput": 0,
    "DepthwiseConv2dNativeBackpropInput": 0,
}


class TensorSizes:
    """The bytes of every tensor that some ops make.

    What is unknown of a shape comes from the inputs. A reshape has all its input's elements; it may multiply the
    batch with other axes, and leave a matrix of which nothing is known.
    """

    def __init__(self, ops: Sequence[Op], batch_size: int) -> None:
        self._batch_size = batch_size
        self._elements: dict[Any, float] = {}
        for op in ops:
            for output in op.outputs:
                self._elements[output.ref()] = self._count(op, output)

    def bytes(self, tensor: Tensor) -> int:
        """The bytes that an op's output takes; none for what is no activation."""
        if tensor.dtype.size == 0 or tensor.op.type == "ReadVariableOp":
            return 0  # resources and texts are no activations, and a read variable is the variable's buffer
        return round(self._elements[tensor.ref()]) * int(tensor.dtype.size)

    def hands_on(self, op: Op) -> bool:
        """Says whether an op's output is its input's buffer though ops of its kind make a new one.

        Where the batch is not known, there are sums over axes that only the step will know, mostly none, and
        transpositions that leave every axis where it is.
        """
        if op.type == "Transpose":
            return _leaves_axes(op.inputs[1])
        return (
            op.type == "Sum"
            and op.inputs[1].op.type == "BroadcastGradientArgs"
            and self._elements[op.outputs[0].ref()] == self._elements.get(op.inputs[0].ref())
        )

    def _of(self, tensor: Tensor) -> float:
        """The elements of a tensor, also of one that other ops make: the model's inputs, incoming gradients."""
        if tensor.ref() in self._elements:
            return self._elements[tensor.ref()]
        if tensor.shape.rank is None:
            return 1.0
        return _multiply_known(tensor.shape) * (1.0 if tensor.shape.is_fully_defined() else self._batch_size)

    def _count(self, op: Op, output: Tensor) -> float:
        if output.shape.is_fully_defined():
            return _multiply_known(output.shape)
        of_inputs = [self._of(tensor) for tensor in op.inputs]
        if op.type in ALIASES and of_inputs:
            return of_inputs[output.value_index if op.type == "IdentityN" else 0]
        if op.type == "MatMul":
            return math.prod(of_inputs) / _find_summed_length(op, of_inputs[1]) ** 2
        like = _find_like(op)
        if like is not None:
            return self._of(like)
        if output.shape.rank is None:
            return max(of_inputs, default=1.0)
        # An input of which more is unknown has other axes than the batch among it.
        unknown = (
            elements / _multiply_known(tensor.shape)
            for elements, tensor in zip(of_inputs, op.inputs, strict=True)
            if tensor.shape.rank is not None and _count_unknown(tensor.shape) == _count_unknown(output.shape)
        )
        return _multiply_known(output.shape) * max(unknown, default=self._batch_size)


def leaves_input_as_it_is(op: Op) -> bool:
    """Says whether a sum leaves its input as it is, for all that the graph knows of shapes."""
    like = _find_like(op) if op.type == "Sum" else None
    if like is None or like.shape.rank is None or op.inputs[0].shape.rank is None:
        return False
    return bool(like.shape.as_list() == op.inputs[0].shape.as_list())


def _find_like(op: Op) -> Tensor | None:
    """The tensor whose shape an op's output gets, a gradient its forward tensor's; None where that is not told."""
    if op.type not in _SHAPE_INPUT:
        return None
    shape = op.inputs[_SHAPE_INPUT[op.type]]
    if op.type == "Sum":
        # Where two inputs have a batch each, only the step knows which axes to sum over.
        if shape.op.type != "BroadcastGradientArgs":
            return None
        shape = shape.op.inputs[shape.value_index]
    return shape.op.inputs[shape.value_index] if shape.op.type in ("Shape", "ShapeN") else None


def _leaves_axes(permutation: Tensor) -> bool:
    """Says whether a permutation of axes, or the one that it is the inverse of, changes nothing."""
    if permutation.op.type == "InvertPermutation":
        permutation = permutation.op.inputs[0]
    order = tf.get_static_value(permutation)
    return order is not None and list(order) == list(range(len(order)))


def _find_summed_length(product: Op, of_second: float) -> float:
    """The length of the axis that a matrix product sums over, from its second factor's shape and elements."""
    shape = product.inputs[1].shape
    if shape.rank is None:
        return 1.0
    axis = 1 if product.get_attr("transpose_b") else 0
    return float(shape[axis] or of_second / (shape[1 - axis] or 1))


def _multiply_known(shape: Any) -> int:
    return math.prod(size or 1 for size in shape)


def _count_unknown(shape: Any) -> int:
    return sum(size is None for size in shape)
