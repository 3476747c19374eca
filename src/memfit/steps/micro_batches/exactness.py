"""Trying, on a few samples, whether a model gives each sample the same output whatever it is batched with.

Keras's own layers do, and where they draw random numbers a micro-batch draws those of the whole batch. Layers that
mix samples, code of the user's own, and random numbers that cannot be drawn so are seen by computing them:
once for all samples, once in parts.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from memfit.compat import keras_layers
from memfit.steps.micro_batches.additivity import TRIED_SAMPLES
from memfit.steps.micro_batches.random_rows import draw_rows_of_batch
from memfit.steps.micro_batches.varying import agree

_PARTS = ((0, 2), (2, 2), (4, 1))  # first sample and number of samples
_TOLERANCE = 1e-3  # far above float32 rounding, far below what another mask of a dropout makes of an output


def find_difference(model: keras.Model, x: Any) -> str | None:
    """Returns why micro-batches would compute something else than whole batches, or None where they would not.

    BatchNormalization is not looked for: that micro-batches change it needs no trial.

    Args:
        model: A model; nothing of it changes.
        x: Its inputs for some samples, at least five, as NumPy arrays.
    """
    own_code = _has_code_of_its_own(model)
    if not (own_code or keras_layers.own_seed_generators(model)):
        return None
    if not all(layer.built for layer in keras_layers.all_layers(model)):
        return (
            "it could not be tried in micro-batches before its first batch: not all of its layers are built"
        )
    try:
        whole, parts, draws = _compute_whole_and_in_parts(model, x)
    except Exception as error:  # whatever a user's layer raises on synthetic samples
        return f"it could not be tried in micro-batches ({type(error).__name__})"
    if draws and model.jit_compile:
        return "other random numbers: XLA draws them in its own order"
    if draws and model.run_eagerly:
        return "other random numbers: a step that runs eagerly does not say which dimension is the samples'"
    if all(agree(one, two, _TOLERANCE) for one, two in zip(whole, parts, strict=True)):
        return None
    if own_code:
        return "a sample's output depends on the samples it is batched with, or on other random numbers"
    return "other random numbers: they cannot be drawn per micro-batch"


def _compute_whole_and_in_parts(model: keras.Model, x: Any) -> tuple[list[Any], list[Any], bool]:
    """Returns the outputs of the samples at once, in parts, and whether random numbers were drawn."""
    specs = keras.tree.map_structure(lambda leaf: tf.TensorSpec((None, *leaf.shape[1:]), leaf.dtype), x)
    drawn: list[Any] = []

    def compute(x: Any, start: Any, size: Any) -> list[Any]:
        with keras.StatelessScope(), draw_rows_of_batch(start, size) as draws:
            outputs = tf.nest.flatten(keras_layers.forward(model, x, training=True))
        drawn.extend(draws)
        return list(outputs)

    number = tf.TensorSpec([], tf.int32)
    traced = tf.function(compute, autograph=False).get_concrete_function(specs, number, number)

    def compute_part(start: int, size: int) -> list[Any]:
        part = keras.tree.map_structure(lambda leaf: tf.constant(leaf[start : start + size]), x)
        outputs = traced(*tf.nest.flatten(part), tf.constant(start), tf.constant(size))
        return [np.asarray(output) for output in outputs]

    parts = zip(*(compute_part(start, size) for start, size in _PARTS), strict=True)
    return compute_part(0, TRIED_SAMPLES), [np.concatenate(part) for part in parts], bool(drawn)


def _has_code_of_its_own(model: keras.Model) -> bool:
    """Whether there is anything but Keras's own layers: functions, ops between layers, a user's classes."""
    layers = keras_layers.all_layers(model)
    models = [layer for layer in layers if isinstance(layer, keras.Model)]
    between = [op for part in models for op in getattr(part, "operations", ())]
    return any(
        not isinstance(op, keras.layers.Layer)
        or isinstance(op, keras.layers.Lambda)
        or not type(op).__module__.startswith("keras.")
        for op in (*layers, *between)
    )
