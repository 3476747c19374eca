"""A quick upper bound of a step's peak: jobs that clearly fit need no recording."""

import math
import os
from typing import Any

import keras

from memfit.sizes import Size

# Layers whose memory is told by the size of their outputs.
_PLAIN = {
    *("Functional", "InputLayer", "Sequential", "Dense", "Embedding", "Conv1D", "Conv2D", "Conv3D"),
    *("Conv1DTranspose", "Conv2DTranspose", "DepthwiseConv1D", "DepthwiseConv2D"),
    *("SeparableConv1D", "SeparableConv2D", "AveragePooling1D", "AveragePooling2D", "AveragePooling3D"),
    *("MaxPooling1D", "MaxPooling2D", "MaxPooling3D", "GlobalAveragePooling1D", "GlobalAveragePooling2D"),
    *("GlobalMaxPooling1D", "GlobalMaxPooling2D", "BatchNormalization", "GroupNormalization"),
    *("LayerNormalization", "Normalization", "Rescaling", "Activation", "ActivityRegularization", "ELU"),
    *("LeakyReLU", "PReLU", "ReLU", "Softmax", "Dropout", "GaussianDropout", "GaussianNoise", "Identity"),
    *("SpatialDropout1D", "SpatialDropout2D", "Add", "Average", "Concatenate", "Dot", "Maximum", "Minimum"),
    *("Multiply", "Subtract", "Cropping1D", "Cropping2D", "UpSampling1D", "UpSampling2D", "ZeroPadding1D"),
    *("ZeroPadding2D", "Flatten", "Permute", "RepeatVector", "Reshape"),
}
# Layers that hold more inside than their outputs say; `_inside` knows how much. All others are not bounded.
_COMPOSITE = frozenset({"Bidirectional", "GRU", "LSTM", "MultiHeadAttention", "SimpleRNN"})
# What a recurrent layer keeps for the backward pass, in values a unit and time step: gates, their activations,
# states, and the buffers that the loop's stacks of them double into.
_RECURRENT = {"LSTM": 20, "GRU": 16, "SimpleRNN": 6}
# Layers whose gradients (or themselves, where they are transposed) TensorFlow's CPU kernels compute from unfolded
# images: of as many as fill 30 MiB (`target_working_set_size` in its conv_grad_*_ops), or of one. A network
# that denoises 28x28 images peaks at 85 MiB for it, where its layers' outputs say 18.
_CONVOLUTIONS = {
    *("Conv1D", "Conv1DTranspose", "Conv2D", "Conv2DTranspose", "Conv3D"),
    *("SeparableConv1D", "SeparableConv2D"),
}
_UNFOLDED = 30 * 2**20
# Per sample, the peaks of ResNet50, MobileNetV2, VGG16, EfficientNetB0, DenseNet121 and a U-Net grow by 0.3 to
# 1.1 times the sum of their layers' outputs; the BFC allocator can occupy twice what is asked of it.
_PER_OUTPUT = 2
# Tensors of the outputs' size around a loss: targets, differences, their squares or logarithms, and gradients.
_PER_LOSS = 6
# The rest is weights, gradients and slots, with the temporaries of the update: up to twice their sum.
_PER_WEIGHT = 2


def upper_bound(model: Any, batch_size: int) -> Size | None:
    """Returns bytes that a training step surely stays below, or None where that cannot be told quickly."""
    if not getattr(model, "outputs", None) or type(model).__name__ not in (
        "Functional",
        "Sequential",
        "Model",
    ):
        return None
    if model.run_eagerly:  # whatever is computed stays until Python lets go of it
        return None
    outputs = 0
    operations = _operations(model)
    for operation in operations:
        if type(operation).__name__ not in _PLAIN | _COMPOSITE:
            return None
        shapes = [tensor.shape[1:] for tensor in keras.tree.flatten([operation.output, operation.input])]
        if any(size is None for shape in shapes for size in shape):
            return None
        outputs += _bytes_of_sample(operation.output)
        outputs += 4 * _inside(operation, shapes)
    # The batch itself; targets are as large as the outputs, and so is what the loss computes of both.
    outputs += _bytes_of_sample(model.inputs) + _PER_LOSS * _bytes_of_sample(model.outputs)
    trained = _bytes(model.trainable_variables)
    # An optimizer that is not built yet is taken for one with two slots a weight, as Adam.
    slots = _bytes(model.optimizer.variables) if model.optimizer.built else 3 * trained
    weights = _bytes(model.variables) + trained + slots
    return Size(_PER_OUTPUT * (outputs * batch_size + _unfolded(operations)) + _PER_WEIGHT * weights)


def sample_bytes(model: Any) -> int:
    """Returns the bytes of a sample and its targets, of a model that `upper_bound` bounds."""
    return _bytes_of_sample(model.inputs) + _bytes_of_sample(model.outputs)


def _operations(model: Any) -> list[Any]:
    """Every operation of a functional model, those of nested models in place of them."""
    operations: list[Any] = []
    # A Sequential model has layers only.
    for operation in getattr(model, "operations", None) or model.layers:
        operations += _operations(operation) if hasattr(operation, "layers") else [operation]
    return operations


def _inside(layer: Any, shapes: list[Any]) -> int:
    """Values of a sample that a layer computes inside and keeps, beyond its outputs."""
    name = type(layer).__name__
    if name == "Bidirectional":
        return _inside(layer.forward_layer, shapes) + _inside(layer.backward_layer, shapes)
    if name in _RECURRENT:
        return max(shape[0] for shape in shapes) * int(layer.units) * _RECURRENT[name]
    if name == "MultiHeadAttention":
        length = max(math.prod(shape[:-1]) for shape in shapes)
        heads, width = int(layer.num_heads), int(layer.key_dim) + int(layer.value_dim or layer.key_dim)
        # Projections and their scaled and transposed copies; scores, softmax, dropout, and their gradients.
        return 4 * length * heads * width + 6 * heads * length * length
    return 0


def _unfolded(operations: list[Any]) -> int:
    """Bytes of the images that kernels unfold at the same time: each thread may run one, for images or weights."""
    units = [_unfolded_image(op) for op in operations if type(op).__name__ in _CONVOLUTIONS]
    threads = min(os.cpu_count() or 1, 2 * len(units))
    return threads * (_UNFOLDED + max(units, default=0))


def _unfolded_image(layer: Any) -> int:
    """Bytes of one unfolded image: a patch of the size of the kernel for every position."""
    patch = max(math.prod(weight.shape[:-1]) for weight in layer.weights if len(weight.shape) > 2)
    sides = [math.prod(tensor.shape[1:-1]) for tensor in keras.tree.flatten([layer.input, layer.output])]
    return 4 * patch * min(sides)


def _bytes_of_sample(tensors: Any) -> int:
    return sum(math.prod(tensor.shape[1:]) * _itemsize(tensor) for tensor in keras.tree.flatten(tensors))


def _bytes(variables: Any) -> int:
    return sum(math.prod(variable.shape) * _itemsize(variable) for variable in variables)


def _itemsize(values: Any) -> int:
    """Bytes of a value; not less than four, because losses and updates are computed in float32."""
    return 8 if str(values.dtype).endswith("64") else 4
