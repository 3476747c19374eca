"""What a micro-batch contributes to the loss of the whole batch.

A Keras loss is a sum over the batch divided by something: the number of values, the number of values that are
not masked, the sum of the weights, or nothing. A micro-batch's share is its own sum divided by the *whole
batch's* divisor, so that the shares of all micro-batches add up to the loss of the batch, and their gradients to
its gradient.
"""

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import keras
import tensorflow as tf

from memfit.compat import keras_layers, keras_training
from memfit.data.shapes import leaves_of
from memfit.steps.micro_batches.samples import Fraction, Part

_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


class DivisorsUnknown(Exception):
    """A divisor depends on masks or weights of the whole batch, which have to be counted first."""


class LossShare:
    """Stands in for one Keras loss and returns the micro-batch's share of it."""

    def __init__(self, loss: keras.Loss, fraction: Fraction, divisor: Any = None) -> None:
        self.loss = loss
        self.name = loss.name
        self.fraction = fraction
        self.divisor = divisor

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        if type(self.loss).__call__ is not keras.Loss.__call__:
            return self.loss(y_true, y_pred, sample_weight) * self.fraction
        values, weights, mask = _weighted_values(self.loss, y_true, y_pred, sample_weight)
        reduction = self.loss.reduction
        if reduction in (None, "none"):
            return values
        if values.shape.rank == 0:
            return values * self.fraction
        total = tf.reduce_sum(values)
        if reduction not in _MEANS:
            return total
        divisor = self.divisor
        if divisor is None:
            if mask is not None or (weights is not None and reduction == "mean_with_sample_weight"):
                raise DivisorsUnknown
            divisor = self.fraction.whole(tf.size(values))
        elif mask is not None and reduction != "mean_with_sample_weight" and _added_to_valid():
            divisor += _added_to_valid() * tf.cast(tf.size(values) / tf.size(mask), tf.float64)
        return tf.math.divide_no_nan(total, tf.cast(divisor, total.dtype))


@cache
def _added_to_valid() -> float:
    """What Keras adds to the number of entries that are not masked: 1e-7 in 3.12, nothing in 3.15."""
    with tf.init_scope():
        weight = keras_training.masked_weights(None, tf.constant([True]), "float64", "mean")
        return 1.0 / float(weight[0]) - 1.0


class DivisorShare:
    """Stands in for one Keras loss and notes the micro-batch's share of its divisor."""

    def __init__(self, loss: keras.Loss) -> None:
        self.loss = loss
        self.name = loss.name
        self.noted: Any = tf.constant(0.0, tf.float64)
        self.depends = False  # on more than the number of samples

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        if type(self.loss).__call__ is keras.Loss.__call__:
            values, weights, mask = _weighted_values(self.loss, y_true, y_pred, sample_weight)
            count = tf.cast(tf.size(values), tf.float64)
            if weights is not None and self.loss.reduction == "mean_with_sample_weight":
                count = tf.cast(tf.reduce_sum(weights), tf.float64)
                self.depends = True
            elif mask is not None:
                # Keras gives the entries that are left the weight total/valid.
                count *= tf.reduce_mean(tf.cast(mask, tf.float64))
                self.depends = True
            self.noted = count
        return tf.constant(0.0)


def _weighted_values(
    loss: keras.Loss, y_true: Any, y_pred: Any, sample_weight: Any
) -> tuple[tf.Tensor, tf.Tensor | None, tf.Tensor | None]:
    """Returns the loss of every entry, weighted and masked; the weights; the mask. As `keras.Loss.__call__`."""
    dtype = loss.dtype
    with keras.name_scope(loss.name):
        masks = [keras_layers.mask_of(y_pred)]
        y_pred = keras.tree.map_structure(lambda t: keras.ops.convert_to_tensor(t, dtype=dtype), y_pred)
        y_true = keras.tree.map_structure(lambda t: keras.ops.convert_to_tensor(t, dtype=dtype), y_true)
        values = loss.call(y_true, y_pred)
        mask = _both([*masks, keras_layers.mask_of(values)])
        values = keras.ops.convert_to_tensor(values, dtype=dtype)
        weights = None if sample_weight is None else keras.ops.convert_to_tensor(sample_weight, dtype=dtype)
        if mask is not None:
            weights = keras_training.masked_weights(weights, mask, dtype)
        if weights is not None:
            values, weights = keras_training.aligned(values, keras.ops.cast(weights, values.dtype))
            values = values * weights
        return values, weights, mask


def _both(masks: Sequence[Any]) -> Any:
    present = [tf.cast(mask, tf.bool) for mask in masks if mask is not None]
    if not present:
        return None
    return present[0] if len(present) == 1 else present[0] & present[1]


class _Note:
    """Stands in for the metric that follows one output's loss and keeps what it is given."""

    def __init__(self) -> None:
        self.value: Any = tf.constant(0.0)

    def update_state(self, value: Any, sample_weight: Any = None) -> None:
        self.value = value


def losses_of_part(
    model: keras.Model, part: Part, y_pred: Any, *, training: bool, added_up: bool = False
) -> tuple[Any, Any, Any]:
    """Returns a micro-batch's share of the batch's loss.

    A loss added in layers, one from an overridden `compute_loss` and one that is a single number already are
    taken for means over the samples (the activity regularisers of Keras 3.15 are); a regulariser of weights, which
    does not depend on the samples, comes out right by the same rule. An added loss with a row for every sample is
    a sum over them: Keras adds it up.

    Args:
        added_up: Whether all of these are sums over the samples instead; only a trial finds out.

    Returns:
        What to differentiate; the share of the loss that Keras shows; the shares of the outputs' losses.
    """
    losses = keras_training.losses(model)
    notes = [_Note() for _ in keras_training.loss_metrics(model)]
    fraction: Any = 1.0 if added_up else part.fraction
    arguments = (model, part.x, part.y, y_pred, part.sample_weight)
    if type(model).compute_loss is not keras.Model.compute_loss:
        with keras_training.replaced_losses(model, losses, notes):
            loss = keras_training.compute_loss(*arguments, training=training)
        if loss.shape.rank == 0:
            loss = loss * fraction
        each = [note.value * part.fraction for note in notes]
    else:
        divisors = [None] * len(losses) if part.divisors is None else tf.unstack(part.divisors, len(losses))
        shares = [LossShare(a, part.fraction, b) for a, b in zip(losses, divisors, strict=True)]
        with (
            keras_training.replaced_losses(model, shares, notes),
            keras_training.replaced_additional_loss(model, partial(_share_of_added, part, fraction)),
        ):
            loss = keras_training.compute_loss(*arguments, training=training)
        each = [note.value for note in notes]
    shown = loss if loss.shape.rank == 0 else tf.reduce_mean(loss) * part.fraction
    each = [tf.cast(share, tf.float64) for share in each]
    return (
        tf.reduce_sum(loss),
        tf.cast(shown, tf.float64),
        tf.stack(each) if each else tf.zeros([0], tf.float64),
    )


def _share_of_added(part: Part, fraction: Any, loss: Any, total: Any) -> Any:
    """Returns a micro-batch's share of an added loss, of which Keras shows the total."""
    has_rows = loss.shape.rank != 0 and loss.shape[0] == leaves_of(part.x)[0].shape[0]
    return total if has_rows else total * fraction


def count_divisors(model: keras.Model, x: Any, y: Any, sample_weight: Any) -> list[DivisorShare]:
    """Returns, for each of the model's losses, what notes a micro-batch's share of its divisor."""
    counts = [DivisorShare(loss) for loss in keras_training.losses(model)]
    notes = [_Note() for _ in keras_training.loss_metrics(model)]
    if counts:
        y_pred = keras_layers.forward(model, x, training=True)
        with keras_training.replaced_losses(model, counts, notes):
            keras_training.compute_compiled_loss(model, y, y_pred, sample_weight)
    return counts
