"""What running an op takes, in bytes moved: FLOPs are counted at a fixed number per byte."""

import math

from memfit.compat.tf_graphs import Op, Tensor
from memfit.steps.rematerialisation.tensor_sizes import ALIASES

# FLOPs a device does in the time it moves one byte. An A100 does 13 in float32, a desktop CPU 5 to 15; the
# choice of segments changes little between 5 and 20.
FLOPS_PER_BYTE = 10.0
_FREE = ALIASES | {"Const", "Placeholder", "ReadVariableOp"}
# How much longer than moving its bytes an op takes, and than its FLOPs in one large product: seen in a ViT's step
# on two cores. Without it dropout's masks look as if they cost nothing to draw again.
_SLOWER = {
    "StatelessRandomUniformV2": 20.0,
    "StatelessRandomNormalV2": 20.0,
    "BatchMatMulV2": 3.0,
    **dict.fromkeys(("Erf", "Erfc", "Exp", "Pow", "Sigmoid", "Softmax", "Tanh"), 3.0),
}


def estimate_cost(op: Op) -> float:
    """Estimates the time of a TensorFlow op as bytes moved plus FLOPs, each at the speed seen for its kind."""
    if op.type in _FREE or op.type.startswith("Shape"):
        return 0.0
    moved = sum(_count_elements(tensor) * tensor.dtype.size for tensor in [*op.inputs, *op.outputs])
    return (moved + count_flops(op) / FLOPS_PER_BYTE) * _SLOWER.get(op.type, 1.0)


def count_flops(op: Op) -> float:
    """Counts the multiplications and additions of convolutions and matrix products; 0 for other ops."""
    kind = op.type
    if kind.endswith(("BackpropFilter", "BackpropFilterV2")):
        return _count_convolution(op, filters=op.outputs[0], grid=op.inputs[2])
    if kind.startswith(("Conv", "DepthwiseConv")) and "BackpropInput" in kind:
        return _count_convolution(op, filters=op.inputs[1], grid=op.inputs[2])
    if kind in ("Conv2D", "Conv3D", "DepthwiseConv2dNative"):
        return _count_convolution(op, filters=op.inputs[1], grid=op.outputs[0])
    if kind == "MatMul":
        inner = op.inputs[0].shape[0 if op.get_attr("transpose_a") else 1] or 1
        return 2.0 * _count_elements(op.outputs[0]) * inner
    if kind.startswith("BatchMatMul"):
        inner = op.inputs[0].shape[-2 if op.get_attr("adj_x") else -1] or 1
        return 2.0 * _count_elements(op.outputs[0]) * inner
    if kind == "Einsum":
        return _count_einsum(op)
    return 0.0


def _count_convolution(op: Op, filters: Tensor, grid: Tensor) -> float:
    """2 x (places of the output) x (elements of one filter) x (filters)."""
    # The filter's last axis is the output channels, which `grid` has too; a depthwise filter's last two are.
    per_output = _count_elements(filters) / (filters.shape[-1] or 1)
    if op.type.startswith("Depthwise"):
        per_output /= filters.shape[-2] or 1
    return 2.0 * _count_elements(grid) * per_output


def _count_einsum(op: Op) -> float:
    equation = op.get_attr("equation").decode()
    sizes: dict[str, int] = {}
    for labels, tensor in zip(equation.split("->")[0].split(","), op.inputs, strict=True):
        if "." in labels:
            return 2.0 * max(_count_elements(tensor) for tensor in op.inputs)
        sizes.update(zip(labels, (size or 1 for size in tensor.shape), strict=True))
    return 2.0 * math.prod(sizes.values())


def _count_elements(tensor: Tensor) -> int:
    if tensor.shape.rank is None or tensor.dtype.size == 0:
        return 0
    return math.prod(size or 1 for size in tensor.shape)
