"""Narrow: fewer channels, the least important removed first, together with all that depends on them."""

from collections import defaultdict
from typing import Any

import keras
import numpy as np

from memfit.slimming.calls import calls_of
from memfit.slimming.channels import DEPTHWISE, MIXING, NORMS, SEPARABLE, TRANSPOSED, Array, Channels
from memfit.slimming.rebuilding import CannotSlim, compile_like, copy_layer, rebuild, why_not_rebuild
from memfit.slimming.variants.variant import Made, Variant

# Kernels of GPUs work on eight channels at a time; of few channels that would be too coarse.
_MULTIPLE, _FEWEST = 8, 32
_NAMED = 3


class Narrow(Variant):
    """Removes channels along their dependency groups; the weights of those that stay are kept.

    A channel's importance is the norm of the weights that make it, times the scale of its BatchNormalization, each
    relative to the other channels of its layer (Li et al. 2017, Liu et al. 2017).
    """

    name = "narrow"
    meaning = "the fraction of channels that is kept"
    default, least, most = 0.75, 0.05, 0.95

    def why_not(self, model: Any) -> str | None:
        """Says that all channels have to stay."""
        if (reason := why_not_rebuild(model)) is not None:
            return reason
        channels = _channels_of(model)
        free = [out for out in _made(channels) if not channels.stays(out).all()]
        return None if free else f"every channel has to stay{_say_pinned(channels)}"

    def make(self, model: Any, amount: float) -> Made:
        """Removes the least important channels of every group."""
        channels = _channels_of(model)
        kept = _choose(channels, amount)
        if not kept.any() or kept.all():
            raise CannotSlim(f"no channel is left to remove{_say_pinned(channels)}")

        def masks(layer: Any) -> tuple[Array, Array] | None:
            if id(layer) not in channels.into:
                return None
            ends = (channels.into[id(layer)], channels.out[id(layer)])
            return kept[channels.roots(ends[0])], kept[channels.roots(ends[1])]

        rebuilt = rebuild(model, lambda layer: _narrower(layer, masks(layer)))
        before = after = 0.0
        for old, new in rebuilt.pairs:
            weights = [np.asarray(weight) for weight in old.get_weights()]
            sliced = _sliced(old, weights, masks(old))
            if [weight.shape for weight in sliced] != [tuple(weight.shape) for weight in new.weights]:
                raise CannotSlim(f"the weights of {old.name} would have another shape")
            if weights:
                new.set_weights(sliced)
            if id(old) in channels.makers:
                before += float((weights[0].astype("float64") ** 2).sum())
                after += float((sliced[0].astype("float64") ** 2).sum())
        removed = len(kept) - int(kept.sum())
        notes = [f"{removed} channels are removed, {amount:.0%} of each group stay"]
        if channels.pinned:
            notes.append(f"all channels stay{_say_pinned(channels)}")
        return Made(compile_like(rebuilt.model, model), tuple(notes), after / max(before, 1e-30))


def _channels_of(model: Any) -> Channels:
    calls = calls_of(model)
    assert calls is not None
    return Channels(calls)


def _say_pinned(channels: Channels) -> str:
    names = list(dict.fromkeys(channels.pinned))
    if not names:
        return ""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f" that meet {', '.join(names[:_NAMED])}{more}: what these do with them cannot be followed"


def _made(channels: Channels) -> list[Array]:
    return [channels.roots(channels.out[maker]) for maker in channels.makers if maker in channels.out]


def _choose(channels: Channels, amount: float) -> Array:
    """Returns for every number whether the channel that it stands for is kept."""
    importance = _importance(channels)
    size = max((int(out.max()) for out in (*channels.out.values(), *channels.into.values())), default=0) + 1
    kept = np.ones(size, bool)
    for group in _groups(channels):
        free = group[~channels.stays(group)]
        count = max(1, round(amount * len(group)))
        if len(group) >= _FEWEST:
            count = max(_MULTIPLE, _MULTIPLE * round(count / _MULTIPLE))
        order = sorted(free.tolist(), key=lambda root: importance[root])
        kept[order[: max(0, len(group) - count)]] = False
    return kept


def _groups(channels: Channels) -> list[Array]:
    """The channels that are ranked against each other: those of all layers that have one in common."""
    groups: list[set[int]] = []
    for roots in _made(channels):
        group = set(roots.tolist())
        apart = [other for other in groups if not other & group]
        for other in groups:
            if other & group:
                group |= other
        groups = [*apart, group]
    return [np.array(sorted(group)) for group in groups]


def _importance(channels: Channels) -> dict[int, float]:
    by_root: dict[int, float] = defaultdict(float)
    scales: dict[int, float] = defaultdict(lambda: 1.0)
    for key, maker in channels.makers.items():
        kernel = np.asarray(maker.get_weights()[1 if type(maker) in SEPARABLE else 0], "float64")
        axis = kernel.ndim - 2 if type(maker) in TRANSPOSED else kernel.ndim - 1
        norms = np.sqrt((kernel**2).sum(axis=tuple(each for each in range(kernel.ndim) if each != axis)))
        norms /= max(norms.mean(), 1e-30)
        for root, norm in zip(channels.roots(channels.out[key]).tolist(), norms.tolist(), strict=True):
            by_root[root] += norm
    for layer, numbers in channels.norms():
        if layer.scale:
            gamma = np.abs(np.asarray(layer.get_weights()[0], "float64"))
            gamma /= max(gamma.mean(), 1e-30)
            for root, scale in zip(channels.roots(numbers).tolist(), gamma.tolist(), strict=True):
                scales[root] *= scale
    return defaultdict(float, {root: norm * scales[root] for root, norm in by_root.items()})


def _narrower(layer: Any, masks: tuple[Array, Array] | None) -> Any:
    """A layer with fewer outputs; None where a copy will do."""
    if masks is None or masks[1].all():
        return None
    count = int(masks[1].sum())
    kind = type(layer)
    if kind is keras.layers.Dense:
        return copy_layer(layer, units=count)
    if kind is keras.layers.Embedding:
        return copy_layer(layer, output_dim=count)
    if kind in MIXING + TRANSPOSED + SEPARABLE:
        return copy_layer(layer, filters=count)
    if kind is keras.layers.Reshape and layer.target_shape[-1] != -1:
        return copy_layer(layer, target_shape=(*layer.target_shape[:-1], count))
    return None


def _sliced(layer: Any, weights: list[Array], masks: tuple[Array, Array] | None) -> list[Array]:
    """The weights of the channels that stay."""
    if masks is None or not weights:
        return weights
    into, out = masks
    kind = type(layer)
    if kind in MIXING:
        return [weights[0][..., into, :][..., out], *(bias[out] for bias in weights[1:])]
    if kind in TRANSPOSED:
        return [weights[0][..., out, :][..., into], *(bias[out] for bias in weights[1:])]
    if kind in DEPTHWISE:
        return [weights[0][..., into, :], *(bias[out] for bias in weights[1:])]
    if kind in SEPARABLE:
        mixed = np.repeat(into, layer.depth_multiplier)
        return [
            weights[0][..., into, :],
            weights[1][..., mixed, :][..., out],
            *(bias[out] for bias in weights[2:]),
        ]
    if kind in (*NORMS, keras.layers.Embedding, keras.layers.PReLU):
        return [weight[..., out] for weight in weights]
    return weights
