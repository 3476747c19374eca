"""Separable convolutions: a filter for each input channel, then a mix of the channels."""

from typing import Any

import keras
import numpy as np

from memfit.slimming.calls import leaf_layers
from memfit.slimming.factorising import factor
from memfit.slimming.rebuilding import CannotSlim, compile_like, rebuild, why_not_rebuild
from memfit.slimming.variants.variant import Made, Variant

# The first layer of a network sees three channels: a filter for each would lose most, and it has few weights.
_FEWEST_CHANNELS = 8
_KEPT = (
    *("name", "trainable", "dtype", "filters", "kernel_size", "strides", "padding", "data_format"),
    *("dilation_rate", "activation", "use_bias", "bias_initializer", "bias_regularizer"),
    *("activity_regularizer", "bias_constraint"),
)


class Separable(Variant):
    """Replaces Conv2D by SeparableConv2D, whose two kernels are the nearest to the trained one.

    The kernel of every input channel, as a matrix of positions and filters, is replaced by its best product of rank
    `amount`: that many filters for each channel, and how the outputs mix them.
    """

    name = "separable"
    meaning = "filters for each input channel"
    default, least, most, whole = 1, 1, None, True

    def why_not(self, model: Any) -> str | None:
        """Says that there is no such convolution."""
        if (reason := why_not_rebuild(model)) is not None:
            return reason
        if not any(_replaced(layer, 1) for layer in leaf_layers(model)):
            return f"no Conv2D with a kernel above 1 and at least {_FEWEST_CHANNELS} input channels"
        return None

    def make(self, model: Any, amount: float) -> Made:
        """Replaces the convolutions where that has fewer weights."""
        rank = int(amount)
        chosen = [layer for layer in leaf_layers(model) if _replaced(layer, rank)]
        if not chosen:
            raise CannotSlim(f"with {rank} filters for each channel, no convolution has fewer weights")
        ids = {id(layer) for layer in chosen}
        rebuilt = rebuild(model, lambda layer: _replacement(layer, rank) if id(layer) in ids else None)
        rebuilt.carry_weights(skip=lambda layer: id(layer) in ids)
        kept = whole = 0.0
        for old, new in rebuilt.pairs:
            if id(old) in ids:
                before, after = _carry(old, new, rank)
                kept, whole = kept + after, whole + before
        notes = (
            f"{len(chosen)} of {_convolutions(model)} 2D convolutions are separable",
            "each keeps one more activation for the backward pass, the output of its depthwise half",
        )
        return Made(compile_like(rebuilt.model, model), notes, kept / max(whole, 1e-30))


def _convolutions(model: Any) -> int:
    return sum(type(layer) is keras.layers.Conv2D for layer in leaf_layers(model))


def _replaced(layer: Any, rank: int) -> bool:
    if type(layer) is not keras.layers.Conv2D or layer.groups != 1 or max(layer.kernel_size) == 1:
        return False
    height, width, channels, filters = layer.kernel.shape
    # TensorFlow's depthwise kernels take equal strides only.
    if channels < _FEWEST_CHANNELS or layer.strides[0] != layer.strides[1] or rank > height * width:
        return False
    return rank * (height * width + filters) < height * width * filters


def _replacement(layer: Any, rank: int) -> Any:
    config = layer.get_config()
    return keras.layers.SeparableConv2D.from_config(
        {
            **{name: config[name] for name in _KEPT if name in config},
            "depth_multiplier": rank,
            "depthwise_regularizer": config.get("kernel_regularizer"),
            "pointwise_regularizer": config.get("kernel_regularizer"),
        }
    )


def _carry(old: Any, new: Any, rank: int) -> tuple[float, float]:
    """Sets the nearest kernels; returns the sum of squares before and after."""
    kernel = np.asarray(old.get_weights()[0], "float64")
    height, width, channels, filters = kernel.shape
    slices = kernel.reshape(height * width, channels, filters).transpose(1, 0, 2)
    depthwise, pointwise = factor(slices, rank)
    new.set_weights(
        [
            depthwise.transpose(1, 0, 2).reshape(height, width, channels, rank),
            pointwise.reshape(1, 1, channels * rank, filters),
            *old.get_weights()[1:],
        ]
    )
    return float((kernel**2).sum()), float(((depthwise @ pointwise) ** 2).sum())
