"""How close a variant is to the original before any training, on the user's own sample."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from memfit.compat.keras_layers import functional_of
from memfit.data.looking import keep_order
from memfit.data.peeking import FirstBatch, first_batch, is_generator
from memfit.errors import InvalidInput

# Enough to tell one variant from another; fewer where the original takes long for them, but not too few. They are
# computed at once, without tracing: for each variant that would take longer than the outputs.
_SAMPLES, _FEWEST = 32, 8
_SECONDS = 1.5


@dataclass(frozen=True)
class Closeness:
    """What was measured on a sample.

    Attributes:
        error: The norm of the outputs' difference, as a part of the original's norm.
        agreement: The share of samples with the same largest output; None where there are no classes.
    """

    error: float
    agreement: float | None


def take_sample(model: Any, data: Any) -> Any:
    """Returns the inputs of a few samples of the user's data as a model takes them; None where there are none.

    Raises:
        InvalidInput: If their shape is not that of the model's inputs.
    """
    x = _inputs_in(data)
    if x is None:
        return None
    x = keras.tree.map_structure(lambda part: np.asarray(part)[:_SAMPLES], x)
    wanted = [] if functional_of(model) is None else functional_of(model).inputs
    parts = keras.tree.flatten(x)
    if len(parts) == len(wanted):
        for part, tensor in zip(parts, wanted, strict=True):
            fits = len(part.shape) == len(tensor.shape) and all(
                want in (None, side) for side, want in zip(part.shape[1:], tensor.shape[1:], strict=True)
            )
            if not fits:
                raise InvalidInput(
                    f"A sample must have the shape of the model's input, {(None, *tensor.shape[1:])}",
                    received=f"data of shape {part.shape}",
                    remedy="Give samples along the first axis, as fit() takes them",
                )
    return x


def _inputs_in(data: Any) -> Any:
    if isinstance(data, FirstBatch):
        data = data.batch
    if data is None or is_generator(data):
        return None
    if hasattr(data, "element_spec"):
        data = next(iter(keep_order(data).take(1)))
    if isinstance(data, tuple):
        return _inputs_in(data[0]) if data and not hasattr(data[0], "shape") else (data[0] if data else None)
    if isinstance(data, list | Mapping) or hasattr(data, "shape"):
        return data
    if hasattr(data, "__getitem__"):
        return _inputs_in(tuple(first_batch(data)))
    return None


def shorten_sample(model: Any, x: Any) -> Any:
    """Returns as many samples of a sample as the model takes in a second or two."""
    few = keras.tree.map_structure(lambda part: part[:_FEWEST], x)
    begin = time.monotonic()
    predict_sample(model, few)
    count = max(_FEWEST, int(_FEWEST * _SECONDS / max(time.monotonic() - begin, 1e-6)))
    return keras.tree.map_structure(lambda part: part[:count], x)


def predict_sample(model: Any, x: Any) -> list[Any]:
    """Returns a model's outputs for a sample, as float32; images are resized to what it takes."""
    outputs = keras.tree.flatten(model(_resized(model, x), training=False))
    return [np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(out, "float32"))) for out in outputs]


def _resized(model: Any, x: Any) -> Any:
    wanted = [] if functional_of(model) is None else functional_of(model).inputs
    parts = keras.tree.flatten(x)
    if len(wanted) != len(parts):
        return x
    resized = [
        keras.ops.convert_to_numpy(keras.ops.image.resize(part.astype("float32"), tensor.shape[1:3]))
        if part.ndim == 4 and None not in tensor.shape[1:3] and part.shape[1:3] != tuple(tensor.shape[1:3])
        else part
        for part, tensor in zip(parts, wanted, strict=True)
    ]
    return keras.tree.pack_sequence_as(x, resized)


def compare_outputs(original: list[Any], variant: list[Any]) -> Closeness | None:
    """Compares the outputs of two models for the same sample; None where their shapes differ."""
    if [out.shape for out in original] != [out.shape for out in variant]:
        return None
    difference = sum(float(((a - b) ** 2).sum()) for a, b in zip(original, variant, strict=True))
    whole = sum(float((out**2).sum()) for out in original)
    agreement = None
    if original[0].ndim > 1 and original[0].shape[-1] > 1:
        agreement = float((original[0].argmax(-1) == variant[0].argmax(-1)).mean())
    return Closeness((difference / max(whole, 1e-30)) ** 0.5, agreement)
