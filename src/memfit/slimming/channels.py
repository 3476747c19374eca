"""Which channels belong together: removed in one layer, a channel has to go in all that it flows into.

Every channel that a layer makes has a number. The last axis of a tensor is an array of such numbers, which layers
pass on, repeat (a depthwise layer), tile (Flatten), join (Concatenate) or tie together (Add): numbers that are tied
are one channel. What cannot be followed pins its channels: they stay.
"""

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from memfit.compat.keras_layers import operation_name
from memfit.slimming.calls import Call, Calls

Array = np.ndarray[Any, Any]
_layers = keras.layers
# Layers that do the same to every channel, whatever the others are.
_PASS = (
    _layers.Activation,
    _layers.ReLU,
    _layers.LeakyReLU,
    _layers.ELU,
    _layers.PReLU,
    _layers.Dropout,
    _layers.SpatialDropout1D,
    _layers.SpatialDropout2D,
    _layers.GaussianNoise,
    _layers.Identity,
    _layers.UpSampling1D,
    _layers.UpSampling2D,
    _layers.ZeroPadding1D,
    _layers.ZeroPadding2D,
    _layers.Cropping1D,
    _layers.Cropping2D,
    _layers.MaxPooling1D,
    _layers.MaxPooling2D,
    _layers.AveragePooling1D,
    _layers.AveragePooling2D,
    _layers.GlobalAveragePooling1D,
    _layers.GlobalAveragePooling2D,
    _layers.GlobalMaxPooling1D,
    _layers.GlobalMaxPooling2D,
)
_MERGE = (_layers.Add, _layers.Subtract, _layers.Multiply, _layers.Average, _layers.Maximum, _layers.Minimum)
_MERGE_OPERATIONS = {"Add", "Subtract", "Multiply", "Divide", "Maximum", "Minimum"}
_PASS_OPERATIONS = {
    *("Relu", "Relu6", "Sigmoid", "Silu", "Gelu", "Tanh", "Softplus", "HardSigmoid", "HardSwish")
}
# Layers whose kernel ends with (inputs, outputs), and those that have them the other way round.
MIXING = (_layers.Dense, _layers.Conv1D, _layers.Conv2D, _layers.Conv3D)
TRANSPOSED = (_layers.Conv1DTranspose, _layers.Conv2DTranspose, _layers.Conv3DTranspose)
DEPTHWISE = (_layers.DepthwiseConv1D, _layers.DepthwiseConv2D)
SEPARABLE = (_layers.SeparableConv1D, _layers.SeparableConv2D)
NORMS = (_layers.BatchNormalization, _layers.LayerNormalization)


class Channels:
    """The channels of a model.

    Attributes:
        into: The channels that each layer takes, by the layer's id; of its first call.
        out: The channels it gives.
        makers: The layers that make channels of their own, by id.
        pinned: Why channels stay: the layers that cannot be followed, by name.
    """

    def __init__(self, calls: Calls) -> None:
        self._parents: list[int] = []
        self._stay: list[bool] = []
        self.into: dict[int, Array] = {}
        self.out: dict[int, Array] = {}
        self.makers: dict[int, Any] = {}
        self.pinned: list[str] = []
        self._norms: dict[int, Any] = {}
        self._of: dict[int, Array] = {}
        for tensor in calls.inputs:
            self._of[id(tensor)] = self._make(_width(tensor), stay=True)
        for call in calls.each:
            self._follow(call)
        for tensor in calls.outputs:
            self._pin(self._of[id(tensor)])

    def roots(self, numbers: Array) -> Array:
        """Returns the channel that stands for each of those tied together."""
        return np.array([self._root(int(number)) for number in numbers], "int64")

    def norms(self) -> list[tuple[Any, Array]]:
        """The BatchNormalization layers, with their channels."""
        return [(layer, self.out[key]) for key, layer in self._norms.items()]

    def stays(self, roots: Array) -> Array:
        """Whether each of these channels must stay."""
        stay = np.zeros(len(self._parents), bool)
        for number, pinned in enumerate(self._stay):
            if pinned:
                stay[self._root(number)] = True
        return stay[roots]

    def _follow(self, call: Call) -> None:
        layer = call.operation
        follow = self._rule(call)
        taken = [self._of[id(tensor)] for tensor in call.inputs]
        given = None if follow is None else follow(call, taken)
        if given is None:
            if not all(self._stay[number] for numbers in taken for number in numbers):
                self.pinned.append(layer.name)
            for numbers in taken:
                self._pin(numbers)
        for position, tensor in enumerate(call.outputs):
            numbers = self._make(_width(tensor), stay=True) if given is None else given[position]
            self._of[id(tensor)] = numbers
        if given is not None and taken:
            if id(layer) in self.into:  # a shared layer: its channels are the same in every call
                self._tie(self.into[id(layer)], taken[0])
                self._tie(self.out[id(layer)], given[0])
            else:
                self.into[id(layer)], self.out[id(layer)] = taken[0], given[0]
            if isinstance(layer, _layers.BatchNormalization):
                self._norms[id(layer)] = layer

    def _rule(self, call: Call) -> Callable[[Call, list[Array]], list[Array] | None] | None:
        layer, kind = call.operation, operation_name(call.operation)
        if getattr(layer, "data_format", "channels_last") == "channels_first" or len(call.outputs) != 1:
            return None
        exact = type(layer)
        if exact in MIXING + TRANSPOSED + SEPARABLE:
            return None if getattr(layer, "groups", 1) != 1 else self._fresh
        if exact is _layers.Embedding:
            return self._fresh
        if exact in DEPTHWISE:
            return lambda call, taken: [np.repeat(taken[0], layer.depth_multiplier)]
        if exact in _PASS or kind in _PASS_OPERATIONS or _normalises_last(layer, call):
            return lambda call, taken: taken[:1]
        if exact in _MERGE or kind in _MERGE_OPERATIONS:
            return self._merge
        if exact is _layers.Concatenate:
            return self._join
        if exact is _layers.Flatten:
            return lambda call, taken: [np.tile(taken[0], _width(call.outputs[0]) // len(taken[0]))]
        if exact is _layers.Reshape and _width(call.inputs[0]) == _width(call.outputs[0]):
            return lambda call, taken: taken
        return None

    def _fresh(self, call: Call, taken: list[Array]) -> list[Array]:
        layer = call.operation
        if id(layer) in self.out:
            return [self.out[id(layer)]]
        self.makers[id(layer)] = layer
        return [self._make(_width(call.outputs[0]), stay=False)]

    def _merge(self, call: Call, taken: list[Array]) -> list[Array]:
        width = _width(call.outputs[0])
        full = [numbers for numbers in taken if len(numbers) == width]
        for numbers in full[1:]:
            self._tie(full[0], numbers)
        for numbers in taken:  # a single channel that meets all others
            if len(numbers) != width:
                self._pin(numbers)
        return full[:1]

    def _join(self, call: Call, taken: list[Array]) -> list[Array] | None:
        last = len(call.outputs[0].shape) - 1
        if call.operation.axis not in (-1, last):
            for numbers in taken[1:]:
                self._tie(taken[0], numbers)
            return taken[:1]
        return [np.concatenate(taken)]

    def _make(self, count: int, *, stay: bool) -> Array:
        first = len(self._parents)
        self._parents += range(first, first + count)
        self._stay += [stay] * count
        return np.arange(first, first + count)

    def _pin(self, numbers: Array) -> None:
        for number in numbers:
            self._stay[number] = True

    def _tie(self, one: Array, other: Array) -> None:
        for a, b in zip(one.tolist(), other.tolist(), strict=True):
            self._parents[self._root(b)] = self._root(a)

    def _root(self, number: int) -> int:
        while self._parents[number] != number:
            self._parents[number] = self._parents[self._parents[number]]
            number = self._parents[number]
        return number


def _width(tensor: Any) -> int:
    size = tensor.shape[-1] if len(tensor.shape) > 1 else 1
    return math.prod(tensor.shape[1:]) if size is None else int(size)


def _normalises_last(layer: Any, call: Call) -> bool:
    if type(layer) not in NORMS:
        return False
    last = len(call.inputs[0].shape) - 1
    axis = layer.axis if isinstance(layer.axis, list | tuple) else [layer.axis]
    return list(axis) in ([-1], [last])
