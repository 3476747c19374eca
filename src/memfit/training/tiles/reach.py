"""How far each kind of layer looks, and which layers look at the whole image: those cannot be computed in tiles."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras

from memfit.compat.keras_layers import functional_of, operation_name, run_through
from memfit.errors import InvalidInput
from memfit.training.tiles.extent import Extent

layers = keras.layers
# The spatial axes of a tensor.
Extents = tuple[Extent, ...]
Rule = Callable[[Any, Extents], Extents]

# Compute each value from those at the same place.
_SAME_PLACE = {
    layers.Activation, layers.ActivityRegularization, layers.Add, layers.AlphaDropout, layers.Average,
    layers.Concatenate, layers.Dropout, layers.ELU, layers.GaussianDropout, layers.GaussianNoise, layers.Identity,
    layers.LeakyReLU, layers.Maximum, layers.Minimum, layers.Multiply, layers.PReLU, layers.ReLU, layers.Rescaling,
    layers.SpatialDropout1D, layers.SpatialDropout2D, layers.SpatialDropout3D, layers.Subtract,
}  # fmt: skip
# Along the channels alone, unless they were given another axis.
_OVER_CHANNELS = {
    layers.BatchNormalization, layers.Dense, layers.LayerNormalization, layers.Normalization, layers.Softmax,
    layers.UnitNormalization,
}  # fmt: skip
_WHOLE = {
    layers.AdditiveAttention, layers.Attention, layers.Bidirectional, layers.Flatten, layers.GRU,
    layers.GlobalAveragePooling1D, layers.GlobalAveragePooling2D, layers.GlobalAveragePooling3D,
    layers.GlobalMaxPooling1D, layers.GlobalMaxPooling2D, layers.GlobalMaxPooling3D, layers.GroupNormalization,
    layers.GroupQueryAttention, layers.LSTM, layers.MultiHeadAttention, layers.Permute, layers.Reshape,
    layers.Resizing, layers.SimpleRNN,
}  # fmt: skip
# Operations of `keras.ops` that compute each value from those at the same place.
_OPERATIONS = frozenset(
    {
        "Abs", "Add", "Clip", "Divide", "Elu", "Exp", "Gelu", "HardSigmoid", "HardSilu", "LeakyRelu", "Log",
        "Log1p", "Maximum", "Minimum", "Multiply", "Negative", "Power", "Relu", "Relu6", "Selu", "Sigmoid", "Silu",
        "Softplus", "Softsign", "Sqrt", "Square", "Subtract", "Tanh", "TrueDivide",
    }
)  # fmt: skip


def follow(model: Any, extents: Extents) -> tuple[list[Extents], list[Extents]]:
    """Returns the extents of a model's outputs (flat) for those of its input, and those of all tensors between.

    Raises:
        InvalidInput: If a layer looks at the whole image, or it is not known how far it looks.
        Misaligned: If a layer would compute the tile with other positions than the image.
    """

    seen: list[Extents] = []

    def visit(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inputs = [leaf for leaf in keras.tree.flatten([args, kwargs]) if isinstance(leaf, _Shape)]
        others = [leaf for leaf in keras.tree.flatten([args, kwargs]) if not isinstance(leaf, _Shape)]
        merged = inputs[0].extents
        rule = _find_rule(operation, others, rank=len(merged) + 2)
        for other in inputs[1:]:
            merged = tuple(a.merge(b) for a, b in zip(merged, other.extents, strict=True))
        seen.append(rule(operation, merged))
        return _Shape(seen[-1])

    outputs = run_through(model, _Shape(extents), visit)
    return [shape.extents for shape in keras.tree.flatten(outputs)], seen


def check_tileable(model: Any) -> int:
    """Returns how many spatial axes a model's input has.

    Raises:
        InvalidInput: If its input cannot be cut into tiles.
    """
    graph = functional_of(model)
    if graph is None or len(graph.inputs) != 1 or not 3 <= len(graph.inputs[0].shape) <= 5:
        raise InvalidInput(
            "Tiles are for functional models with one input of (samples, positions..., channels)",
            received=type(model).__name__ if graph is None else [tuple(x.shape) for x in graph.inputs],
            remedy=_REMEDY,
        )
    return len(graph.inputs[0].shape) - 2


_REMEDY = "Predict without tiles="


class _Shape:
    """Stands for a tensor; an object of its own, because Keras takes tuples apart."""

    def __init__(self, extents: Extents) -> None:
        self.extents = extents


def _find_rule(operation: Any, others: Sequence[Any], rank: int) -> Rule:
    """Finds what a layer does to extents.

    Args:
        others: The arguments that it is called with beside tensors.
        rank: The axes of its inputs.
    """
    kind, name = type(operation), getattr(operation, "name", type(operation).__name__)
    _check_layer(operation, name, rank)
    if kind in _RULES:
        return _RULES[kind]
    plain = all(other is None or isinstance(other, bool | int | float | str) for other in others)
    if operation_name(operation) in _OPERATIONS and plain:
        return _keep
    if kind in _WHOLE:
        raise _refuse(operation, name)
    raise InvalidInput(
        f"It is not known how far {name!r} ({kind.__name__}) looks, and tiles have to overlap by that",
        remedy=_REMEDY,
    )


def _check_layer(layer: Any, name: str, rank: int) -> None:
    """Refuses settings with which a layer looks along an axis of the image, or has weights for its places."""
    if getattr(layer, "data_format", "channels_last") not in ("channels_last", None):
        raise InvalidInput(
            f"Tiles are for channels_last, and {name!r} has its channels first", remedy=_REMEDY
        )
    if getattr(layer, "activity_regularizer", None) is not None:
        raise InvalidInput(
            f"{name!r} adds a loss of its activations, which tiles would not add up", remedy=_REMEDY
        )
    activation = getattr(layer, "activation", None)
    if activation is not None and getattr(activation, "__module__", "") != keras.activations.relu.__module__:
        raise InvalidInput(f"It is not known how far the activation of {name!r} looks", remedy=_REMEDY)
    if type(layer) in _OVER_CHANNELS | {layers.Concatenate}:
        axes = keras.tree.flatten(getattr(layer, "axis", -1))
        if any(axis not in (-1, rank - 1, None) for axis in axes):
            raise _refuse(layer, name)
    if isinstance(layer, layers.PReLU) and set(layer.shared_axes or ()) != set(range(1, rank - 1)):
        raise InvalidInput(f"{name!r} has a weight for every place of the image", remedy=_REMEDY)


def _refuse(layer: Any, name: str) -> InvalidInput:
    return InvalidInput(
        f"{name!r} ({type(layer).__name__}) looks at the whole image, so it cannot be computed in tiles",
        remedy=_REMEDY,
    )


def _keep(layer: Any, extents: Extents) -> Extents:
    return extents


def _convolve(layer: Any, extents: Extents) -> Extents:
    axes = _with_settings(extents, layer.kernel_size, layer.strides, layer.dilation_rate)
    return tuple(extent.slide(*numbers, layer.padding) for extent, *numbers in axes)


def _pool(layer: Any, extents: Extents) -> Extents:
    axes = _with_settings(extents, layer.pool_size, layer.strides)
    return tuple(extent.slide(size, stride, 1, layer.padding) for extent, size, stride in axes)


def _transpose(layer: Any, extents: Extents) -> Extents:
    axes = list(_with_settings(extents, layer.kernel_size, layer.strides, layer.dilation_rate))
    if layer.output_padding is not None or any(rate != 1 for *_, rate in axes):
        raise InvalidInput(
            f"Tiles are for transposed convolutions without output_padding or dilation, not {layer.name!r}",
            remedy=_REMEDY,
        )
    return tuple(extent.spread(size, stride, layer.padding) for extent, size, stride, _ in axes)


def _upsample(layer: Any, extents: Extents) -> Extents:
    axes, way = list(_with_settings(extents, layer.size)), getattr(layer, "interpolation", "nearest")
    # TensorFlow computes the positions between pixels in float32: those of other factors depend on the tile.
    if way != "nearest" and not (way == "bilinear" and all(size & (size - 1) == 0 for _, size in axes)):
        raise InvalidInput(
            f"Tiles are exact for upsampling by nearest, or bilinear by powers of two, and {layer.name!r} is not",
            received=f"{way} by {tuple(size for _, size in axes)}",
            remedy=_REMEDY,
        )
    reach = 0 if way == "nearest" else 1
    return tuple(extent.enlarge(size, reach) for extent, size in axes)


def _pad(layer: Any, extents: Extents) -> Extents:
    sides = zip(extents, _sides(layer.padding, extents), strict=True)
    return tuple(extent.pad(*both) for extent, both in sides)


def _crop(layer: Any, extents: Extents) -> Extents:
    sides = zip(extents, _sides(layer.cropping, extents), strict=True)
    return tuple(extent.pad(-before, -after) for extent, (before, after) in sides)


def _with_settings(extents: Extents, *settings: Any) -> Iterator[tuple[Any, ...]]:
    """Yields each axis with its settings; one number is for all axes."""
    each = [
        setting if isinstance(setting, tuple | list) else [setting] * len(extents) for setting in settings
    ]
    return zip(extents, *each, strict=True)


def _sides(setting: Any, extents: Extents) -> tuple[tuple[int, int], ...]:
    """What is added or taken away on both sides of each axis."""
    return (tuple(setting),) if len(extents) == 1 and isinstance(setting[0], int) else tuple(setting)


_RULES: dict[type, Rule] = {
    **dict.fromkeys(_SAME_PLACE | _OVER_CHANNELS, _keep),
    **dict.fromkeys(
        [
            layers.Conv1D, layers.Conv2D, layers.Conv3D, layers.DepthwiseConv1D, layers.DepthwiseConv2D,
            layers.SeparableConv1D, layers.SeparableConv2D,
        ],
        _convolve,
    ),
    **dict.fromkeys([layers.Conv1DTranspose, layers.Conv2DTranspose, layers.Conv3DTranspose], _transpose),
    **dict.fromkeys(
        [
            layers.MaxPooling1D, layers.MaxPooling2D, layers.MaxPooling3D, layers.AveragePooling1D,
            layers.AveragePooling2D, layers.AveragePooling3D,
        ],
        _pool,
    ),
    **dict.fromkeys([layers.UpSampling1D, layers.UpSampling2D, layers.UpSampling3D], _upsample),
    **dict.fromkeys([layers.ZeroPadding1D, layers.ZeroPadding2D, layers.ZeroPadding3D], _pad),
    **dict.fromkeys([layers.Cropping1D, layers.Cropping2D, layers.Cropping3D], _crop),
}  # fmt: skip
