"""Names of layers that Keras numbered otherwise: a saved plan holds for the same network built again.

Segments name ops, and an op's name begins with the layers it was made in: `functional/conv2d_1/convolution`. Keras
numbers the layers without a name of their own by how many it has made in a process, so the same network may come
up with others.
"""

from dataclasses import replace
from typing import Any

from memfit.compat.keras_layers import all_layers, layers_inside
from memfit.steps.rematerialisation import Segments


def layer_names(model: Any) -> tuple[str, ...]:
    """Names the model and every layer in it, in an order that only the network decides."""
    return tuple(layer.name for layer in all_layers(model))


def with_names_of(model: Any, segments: Segments, names: tuple[str, ...]) -> Segments:
    """Returns segments whose ops are named as a model's are.

    Args:
        model: A model of the same network as the one the segments were chosen for.
        segments: What is kept for the backward pass.
        names: The `layer_names` of the model they were chosen for.
    """
    if names == layer_names(model):
        return segments
    old_names = {id(layer): name for name, layer in zip(names, all_layers(model), strict=True)}
    return replace(
        segments,
        starts=tuple(_renamed(name, model, old_names) for name in segments.starts),
        kept=tuple(_renamed(name, model, old_names) for name in segments.kept),
    )


def _renamed(op: str, model: Any, old_names: dict[int, str]) -> str:
    """Renames the layers that an op's name begins with; ops behind them may be named like layers and are left."""
    parts = op.split("/")
    inside = [model, *layers_inside(model)]  # a custom step may call the layers themselves
    for place, part in enumerate(parts):
        by_name = {old_names[id(layer)]: layer for layer in inside}
        # A layer that is called again has the number of the call behind its name.
        name, _, call = part.rpartition("_")
        if part in by_name:
            layer, suffix = by_name[part], ""
        elif name in by_name and call.isdigit():
            layer, suffix = by_name[name], f"_{call}"
        else:
            break
        parts[place] = layer.name + suffix
        inside = layers_inside(layer)
    return "/".join(parts)
