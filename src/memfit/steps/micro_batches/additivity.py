"""Checking, on a few samples, that a custom loss adds up from the parts of a batch.

Keras's own losses, layers and regularisers of weights do. A loss that a layer adds, an overridden `compute_loss`
and a loss function that returns one number are taken for means over the samples; whether they are is seen only by
computing them: once for some samples, once for the same samples in parts, and again with other numbers in them.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from memfit.compat import keras_data, keras_layers
from memfit.compat.keras_layers import all_layers
from memfit.steps.micro_batches.batch import PartedBatch, PartResult
from memfit.steps.micro_batches.loss_shares import losses_of_part
from memfit.steps.micro_batches.samples import Part
from memfit.steps.micro_batches.varying import agree, half_of_digits, vary_samples

TRIED_SAMPLES = 5  # cut into 2, 2 and 1: parts of unequal size show a sum as well as a mean of means


def has_to_be_checked(model: keras.Model) -> bool:
    """Says whether anything can have a part in a model's loss that is not known to add up.

    That is all but Keras's own code, and of that the activity regularisers: they are means over the samples in
    Keras 3.15, and were sums in 3.12.
    """
    if any(layer.activity_regularizer is not None for layer in all_layers(model)):
        return True
    if type(model).compute_loss is not keras.Model.compute_loss:
        return True
    losses = keras.tree.flatten(model.loss) if getattr(model, "loss", None) is not None else []
    losses = [getattr(loss, "fn", loss) for loss in losses if loss is not None and not isinstance(loss, str)]
    kinds = [loss if hasattr(loss, "__name__") else type(loss) for loss in losses]
    kinds += [type(layer) for layer in all_layers(model)]
    return any(not str(kind.__module__).startswith("keras.") for kind in kinds)


def find_loss_difference(model: keras.Model, data: Any) -> str | None:
    """Returns how the loss of some samples differs from that of their parts, or None where it does not.

    Nothing of the model changes.

    Args:
        data: At least five samples as `fit` takes them, or a batch as Keras gives it to a step.
    """
    if not has_to_be_checked(model):
        return None
    few = first_samples(data)
    for samples in (few, keras.tree.map_structure(_vary, few)):
        try:
            whole, parts = _losses_whole_and_in_parts(model, samples)
        except Exception as error:  # whatever a user's loss raises; other numbers may be invalid to it
            if samples is few or isinstance(error, tf.errors.ResourceExhaustedError):
                return f"its loss could not be tried in micro-batches ({type(error).__name__})"
        else:
            if not agree(whole, parts, half_of_digits(model.compute_dtype)):
                return f"a few samples have a loss of {whole:.4g} in one batch and {parts:.4g} in parts"
    return None


def first_samples(data: Any) -> Any:
    """Returns as many samples of a batch as a trial needs."""
    return keras.tree.map_structure(_cut, data)


def _losses_whole_and_in_parts(model: keras.Model, samples: Any) -> tuple[float, float]:
    """Computes the loss of a few samples at once and in parts, as a step does: traced, unless it runs eagerly."""
    x, y, weights = keras.utils.unpack_x_y_sample_weight(samples)
    few = next(iter(keras_data.array_dataset(x, y, weights, TRIED_SAMPLES, shuffle=False, class_weight=None)))
    # In a stateless scope Keras looks for the values of regularised weights in the scope alone.
    regularised = [(v, v.value) for v in model.trainable_variables if v.regularizer is not None]

    def compute(part: Part) -> PartResult:
        with keras.StatelessScope(regularised, collect_losses=True):
            y_pred = keras_layers.forward(model, part.x, training=False)
            _, shown, _ = losses_of_part(model, part, y_pred, training=False)
        return (shown,), []

    def compute_loss(batch: Any, size: Any) -> Any:
        sums, _ = PartedBatch(model, batch, lambda _: size).add_up(compute, (tf.constant(0.0, tf.float64),))
        return sums[0]

    if not (model.jit_compile or model.run_eagerly):
        compute_loss = tf.function(compute_loss, autograph=False)
    whole, parts = (float(compute_loss(few, tf.constant(size))) for size in (TRIED_SAMPLES, 2))
    return whole, parts


def _cut(leaf: Any) -> Any:
    if leaf is None:
        return None
    if isinstance(leaf, tf.SparseTensor):
        return tf.sparse.slice(leaf, [0] * leaf.shape.rank, [TRIED_SAMPLES, *leaf.dense_shape.numpy()[1:]])
    # Not every layout of SciPy's sparse matrices can be cut.
    return (leaf.tocsr() if hasattr(leaf, "tocsr") else leaf)[:TRIED_SAMPLES]


def _vary(leaf: Any) -> Any:
    """Varies arrays and dense tensors; ragged and sparse ones stay as they are."""
    return vary_samples(leaf) if isinstance(leaf, np.ndarray | tf.Tensor) else leaf
