"""Checking, on a few samples, that a custom loss adds up from the parts of a batch.

Keras's own losses, layers and regularisers of weights do. A loss that a layer adds, an overridden `compute_loss`
and a loss function that returns one number are taken for means over the samples; whether they are is seen only by
computing them: once for some samples, once for the same samples in parts.
"""

from typing import Any

import keras
import tensorflow as tf

from memfit.compat import keras_data, keras_layers
from memfit.compat.keras_layers import all_layers
from memfit.steps.micro_batches.batch import PartedBatch, PartResult
from memfit.steps.micro_batches.loss_shares import losses_of_part
from memfit.steps.micro_batches.samples import Part

_SAMPLES = 5  # cut into 2, 2 and 1: parts of unequal size show a sum as well as a mean of means
_TOLERANCE = 1e-3  # far above float32 rounding, far below the factor that a sum would be wrong by


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


def losses_whole_and_in_parts(model: keras.Model, data: Any) -> tuple[float, float] | None:
    """Computes the loss of a few samples at once and in parts, without changing anything in the model.

    Args:
        data: Some samples as `fit` takes them, or a batch as Keras gives it to a step.

    Returns:
        Both losses, or None where they cannot be compared because the model draws random numbers even when it
        is not training.
    """
    x, y, weights = keras.utils.unpack_x_y_sample_weight(keras.tree.map_structure(_first_samples, data))
    few = next(iter(keras_data.array_dataset(x, y, weights, _SAMPLES, shuffle=False, class_weight=None)))
    draws: list[bool] = []
    # In a stateless scope Keras looks for the values of regularised weights in the scope alone.
    regularised = [(v, v.value) for v in model.trainable_variables if v.regularizer is not None]

    def loss_in_parts_of(size: int) -> float:
        def compute(part: Part) -> PartResult:
            with keras.StatelessScope(regularised, collect_losses=True) as scope:
                y_pred = keras_layers.forward(model, part.x, training=False)
                _, shown, _ = losses_of_part(model, part, y_pred, training=False)
            seeds = [v for v in model.non_trainable_variables if "seed_generator_state" in v.path]
            draws.append(any(scope.get_current_value(seed) is not None for seed in seeds))
            return (shown,), []

        return float(PartedBatch(model, few, size).add_up(compute, (tf.constant(0.0, tf.float64),))[0][0])

    both = loss_in_parts_of(_SAMPLES), loss_in_parts_of(2)
    return None if any(draws) else both


def _first_samples(leaf: Any) -> Any:
    if leaf is None:
        return None
    if isinstance(leaf, tf.SparseTensor):
        return tf.sparse.slice(leaf, [0] * leaf.shape.rank, [_SAMPLES, *leaf.dense_shape.numpy()[1:]])
    # Not every layout of SciPy's sparse matrices can be cut.
    return (leaf.tocsr() if hasattr(leaf, "tocsr") else leaf)[:_SAMPLES]


def agree(whole: float, parts: float) -> bool:
    """Says whether two losses are the same but for rounding (or both not a number)."""
    return abs(whole - parts) <= _TOLERANCE * max(abs(whole), abs(parts)) or (
        whole != whole and parts != parts
    )
