"""Low rank: a large dense layer or 1x1 convolution as two thin ones."""

from typing import Any

import keras
import numpy as np

from memfit.slimming.calls import leaf_layers
from memfit.slimming.factorising import Array, energies, factor, smallest_rank
from memfit.slimming.rebuilding import (
    CannotSlim,
    compile_like,
    copy_layer,
    rebuild,
    why_not_rebuild,
)
from memfit.slimming.variants.variant import Made, Variant

# Smaller matrices have no weights worth saving.
_SMALLEST_SIDE = 16
# Of a layer's weights: two layers that have hardly fewer cost an activation and a kernel more.
_WORTH_IT = 0.9


class LowRank(Variant):
    """Replaces the matrix of a layer by its nearest product of two thin ones, where that has fewer weights."""

    name = "low-rank"
    meaning = "the fraction of each matrix's energy that is kept"
    default, least, most = 0.9, 0.05, 0.999

    def why_not(self, model: Any) -> str | None:
        """Says that there is no such layer."""
        reason = why_not_rebuild(model)
        if reason is None and not any(_matrix(layer) is not None for layer in leaf_layers(model)):
            return f"no Dense or 1x1 Conv2D with {_SMALLEST_SIDE} channels or more on both sides"
        return reason

    def make(self, model: Any, amount: float) -> Made:
        """Replaces the layers that have fewer weights at the rank which keeps so much energy."""
        factors: dict[int, tuple[Array, Array]] = {}
        large = [layer for layer in leaf_layers(model) if _matrix(layer) is not None]
        kept = whole = 0.0
        for layer in large:
            matrix = _matrix(layer)
            values = energies(matrix)
            rank = smallest_rank(values, amount)
            if rank * sum(matrix.shape) <= _WORTH_IT * matrix.size:
                factors[id(layer)] = factor(matrix, rank)
                kept, whole = kept + values[:rank].sum(), whole + values.sum()
        if not factors:
            raise CannotSlim(
                f"at {amount:.0%} of its energy none of {len(large)} dense layers and 1x1 convolutions has fewer "
                "weights: a network that was not trained has no structure to use"
            )
        ranks = {key: left.shape[1] for key, (left, _) in factors.items()}
        rebuilt = rebuild(
            model, lambda layer: _replacement(layer, ranks[id(layer)]) if id(layer) in ranks else None
        )
        rebuilt.carry_weights(skip=lambda layer: id(layer) in ranks)
        for old, new in rebuilt.pairs:
            if id(old) in ranks:
                lead = tuple(old.kernel.shape[:-2])
                thin = [each.reshape(*lead, *each.shape) for each in factors[id(old)]]
                new.set_weights([*thin, *old.get_weights()[1:]])
        notes = (
            f"{len(ranks)} of {len(large)} dense layers and 1x1 convolutions have rank "
            f"{min(ranks.values())} to {max(ranks.values())}",
            "each keeps one more thin activation for the backward pass",
        )
        return Made(compile_like(rebuilt.model, model), notes, kept / max(whole, 1e-30))


def _matrix(layer: Any) -> Any:
    """The weights of a layer as a matrix of inputs and outputs; None for other layers, and for small ones."""
    pointwise = type(layer) is keras.layers.Conv2D and layer.groups == 1 and max(layer.kernel_size) == 1
    if not (pointwise or type(layer) is keras.layers.Dense) or "int" in str(layer.kernel.dtype):
        return None
    kernel = layer.kernel
    if min(kernel.shape[-2:]) < _SMALLEST_SIDE:
        return None
    return np.asarray(keras.ops.convert_to_numpy(kernel), "float64").reshape(kernel.shape[-2:])


def _replacement(layer: Any, rank: int) -> Any:
    thin = {"use_bias": False, "activation": None, "bias_regularizer": None, "activity_regularizer": None}
    dense = isinstance(layer, keras.layers.Dense)
    width, strides = ({"units": rank}, {}) if dense else ({"filters": rank}, {"strides": (1, 1)})
    first = copy_layer(layer, name=f"first_of_{layer.name}", **width, **thin)
    second = copy_layer(layer, name=f"second_of_{layer.name}", **strides)
    return keras.Sequential([first, second], name=layer.name)
