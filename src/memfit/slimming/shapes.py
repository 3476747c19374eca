"""What the shapes of a model's layers say in milliseconds: its bytes, its FLOPs, what a step keeps."""

import math
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from memfit.estimation.recording.kept import size_of
from memfit.slimming.calls import Call, Calls, calls_of
from memfit.slimming.channels import DEPTHWISE, SEPARABLE, TRANSPOSED

_layers = keras.layers
_CONVOLUTIONS = (_layers.Conv1D, _layers.Conv2D, _layers.Conv3D, *DEPTHWISE)


@dataclass(frozen=True)
class Shapes:
    """What shapes alone tell of a model.

    Attributes:
        parameters: Values in all weights.
        trained: Bytes of the weights that are trained.
        weights: Bytes of all weights.
        inputs: Bytes of a sample of the inputs; None where the model does not tell its layers.
        activations: Bytes of a sample's layer outputs that a backward pass goes through.
        live: The most bytes of a sample that a prediction holds at a time.
        flops: Of a sample's forward pass, a product and its sum as two.
    """

    parameters: int
    trained: int
    weights: int
    inputs: int | None = None
    activations: int | None = None
    live: int | None = None
    flops: int | None = None


def read_shapes(model: Any) -> Shapes:
    """Reads the shapes of a model."""
    known = (
        sum(math.prod(weight.shape) for weight in model.weights),
        sum(map(size_of, model.trainable_weights)),
        sum(map(size_of, model.weights)),
    )
    calls = calls_of(model)
    tensors = [] if calls is None else [*calls.inputs, *(out for call in calls.each for out in call.outputs)]
    if calls is None or any(side is None for tensor in tensors for side in tensor.shape[1:]):
        return Shapes(*known)
    return Shapes(
        *known,
        inputs=sum(map(_sample_bytes, calls.inputs)),
        activations=_kept_bytes(calls),
        live=_live_bytes(calls),
        flops=sum(map(_flops, calls.each)),
    )


def _itemsize(tensor: Any) -> int:
    return int(tf.as_dtype(tensor.dtype).size) or 4  # a text has none


def _sample_bytes(tensor: Any) -> int:
    return math.prod(tensor.shape[1:]) * _itemsize(tensor)


def _kept_bytes(calls: Calls) -> int:
    """Bytes of what the layers behind the first that is trained give, and of what they compute inside."""
    trained: set[int] = set()
    total = 0
    for call in calls.each:
        weights = getattr(call.operation, "trainable_weights", [])
        if weights or any(id(tensor) in trained for tensor in call.inputs):
            trained.update(id(tensor) for tensor in call.outputs)
            total += sum(map(_sample_bytes, call.outputs)) + _inside(call)
    return total


def _inside(call: Call) -> int:
    """Bytes of a sample that a layer keeps beside its outputs."""
    layer = call.operation
    if type(layer) in SEPARABLE:
        channels = math.prod(layer.depthwise_kernel.shape[-2:])
        return math.prod(call.outputs[0].shape[1:-1]) * channels * _itemsize(call.outputs[0])
    if type(layer) is _layers.MultiHeadAttention:
        length, heads = math.prod(call.inputs[0].shape[1:-1]), layer.num_heads
        values = 4 * length * heads * layer.key_dim + 3 * heads * length**2
        return values * _itemsize(call.outputs[0])
    return 0


def _live_bytes(calls: Calls) -> int:
    """The largest sum of the tensors that later calls still need, layer by layer."""
    last = {id(tensor): position for position, call in enumerate(calls.each) for tensor in call.inputs}
    last.update({id(tensor): len(calls.each) for tensor in calls.outputs})
    alive = {id(tensor): _sample_bytes(tensor) for tensor in calls.inputs}
    largest = sum(alive.values())
    for position, call in enumerate(calls.each):
        alive.update({id(tensor): _sample_bytes(tensor) for tensor in call.outputs})
        largest = max(largest, sum(alive.values()) + _inside(call))
        alive = {key: size for key, size in alive.items() if last.get(key, -1) > position}
    return largest


def _flops(call: Call) -> int:
    layer = call.operation
    if not call.inputs or not call.outputs:
        return 0
    into, out = call.inputs[0].shape[1:], call.outputs[0].shape[1:]
    if type(layer) in _CONVOLUTIONS:
        # Each position of the output takes a whole kernel, of all filters.
        return 2 * math.prod(out[:-1]) * math.prod(layer.kernel.shape)
    if type(layer) in TRANSPOSED:
        return 2 * math.prod(into[:-1]) * math.prod(layer.kernel.shape)
    if type(layer) in SEPARABLE:
        kernels = (layer.depthwise_kernel, layer.pointwise_kernel)
        return 2 * math.prod(out[:-1]) * sum(math.prod(kernel.shape) for kernel in kernels)
    if type(layer) is _layers.Dense:
        return 2 * math.prod(into) * layer.units
    if type(layer) is _layers.EinsumDense:
        return 2 * math.prod(into[:-1]) * math.prod(layer.kernel.shape)
    if type(layer) is _layers.MultiHeadAttention:
        length, width = math.prod(into[:-1]), layer.num_heads * layer.key_dim
        return 2 * length * (4 * into[-1] * width + 2 * length * width)
    if isinstance(layer, _layers.RNN | _layers.Bidirectional):
        # Each time step takes every matrix once.
        return 2 * into[0] * sum(math.prod(w.shape) for w in layer.weights if len(w.shape) == 2)
    return 0
