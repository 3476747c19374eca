"""Steps in micro-batches: the loss, gradients and metrics of the whole batch, a part of it at a time."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from memfit.compat import keras_layers, keras_training
from memfit.data.shapes import leaves_of
from memfit.errors import InvalidInput
from memfit.steps.installing import is_custom
from memfit.steps.micro_batches.accumulators import Accumulators, OtherKindOfGradient
from memfit.steps.micro_batches.batch import PartedBatch, PartResult, Sums
from memfit.steps.micro_batches.loss_shares import losses_of_part
from memfit.steps.micro_batches.random_rows import draw_rows_of_batch
from memfit.steps.micro_batches.samples import Part, whole
from memfit.steps.share import Share
from memfit.steps.writes import writing

Forward = Callable[[Any], Any]
Step = Callable[[Any], dict[str, Any]]
Apply = Callable[[list[Any], list[Any]], None]


def micro_batched_train_step(
    model: keras.Model,
    size: int | Callable[[Any], Any],
    forward: Forward,
    apply: Apply | None = None,
    share: Share | None = None,
) -> Step:
    """Returns a `train_step` that computes a batch in parts of `size` samples and updates the weights once.

    Args:
        size: Samples in a micro-batch, or what gives them from the samples in a batch.
        apply: Takes the gradients and the weights; None to update the weights at once.
        share: The batch's place in a larger one, where it is one rank's share of it.
    """
    apply = partial(_update, model) if apply is None else apply
    accumulators = Accumulators(model)

    def train_step(data: Any) -> dict[str, Any]:
        batch = PartedBatch(model, data, size, share)
        while True:
            try:
                return update(batch)
            except OtherKindOfGradient:
                continue

    def update(batch: PartedBatch) -> dict[str, Any]:
        weights = model.trainable_weights
        names: set[str] = set()

        def differentiate(part: Part) -> PartResult:
            with tf.GradientTape() as tape:
                y_pred = forward(part.x)
                objective, shown, each = losses_of_part(model, part, y_pred, training=True)
                objective = model.optimizer.scale_loss(objective)
            rows = accumulators.add(weights, tape.gradient(objective, weights))
            names.update(model.compute_metrics(part.x, part.y, y_pred, sample_weight=part.sample_weight))
            return (shown, each), rows

        accumulators.clear(weights)
        sums, rows = batch.add_up(
            differentiate,
            _zeros(model),
            accumulators.row_specs(weights),
            written=lambda: accumulators.written(weights),
        )
        if weights:
            apply(accumulators.gradients(weights, rows), weights)
        else:
            warnings.warn("The model does not have any trainable weights.", stacklevel=2)
        _track(model, batch, sums)
        return _results(model, names)

    return train_step


def whole_batch_train_step(model: keras.Model, forward: Forward, apply: Apply | None = None) -> Step:
    """Returns Keras's own `train_step` with another `forward`; the arguments are those of micro-batches."""
    apply = partial(_update, model) if apply is None else apply

    def train_step(data: Any) -> dict[str, Any]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(whole(data))
        with tf.GradientTape() as tape:
            y_pred = forward(x)
            begin = _ops_until_now()
            loss = keras_training.compute_loss(model, x, y, y_pred, sample_weight, training=True)
            keras_training.track_loss(model, loss, tf.shape(leaves_of(x)[0])[0])
            loss = model.optimizer.scale_loss(loss)
        logs = model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        weights = model.trainable_weights
        if not weights:
            warnings.warn("The model does not have any trainable weights.", stacklevel=2)
            return logs
        gradients = _differentiate(tape, loss, weights, begin)
        apply(gradients, weights)
        if is_custom(model, "compute_metrics"):  # its logs may be others than the metrics
            return logs
        there = [gradient for gradient in gradients if gradient is not None]
        with tf.control_dependencies(tf.nest.flatten(there, expand_composites=True)):
            return model.get_metrics_result()

    return train_step


def whole_share_train_step(model: keras.Model, forward: Forward, apply: Apply, share: Share) -> Step:
    """Returns a `train_step` for one rank's share of a batch, all of it at once: a part that needs no adding up."""

    def train_step(data: Any) -> dict[str, Any]:
        batch = PartedBatch(model, data, lambda samples: samples, share)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(whole(data))
        part = share.part(x, y, sample_weight, batch.samples)
        with draw_rows_of_batch(share.first.read_value(), batch.samples), tf.GradientTape() as tape:
            y_pred = forward(x)
            begin = _ops_until_now()
            objective, shown, each = losses_of_part(model, part, y_pred, training=True)
            objective = model.optimizer.scale_loss(objective)
            _track(model, batch, (shown, each))
        names = set(model.compute_metrics(x, y, y_pred, sample_weight=sample_weight))
        weights = model.trainable_weights
        if weights:
            apply(_differentiate(tape, objective, weights, begin), weights)
        return _results(model, names)

    return train_step


def micro_batched_test_step(
    model: keras.Model, size: int | Callable[[Any], Any], share: Share | None = None
) -> Step:
    """Returns a `test_step` that evaluates a batch in parts of `size` samples."""

    def test_step(data: Any) -> dict[str, Any]:
        batch = PartedBatch(model, data, size, share)
        names: set[str] = set()

        def evaluate(part: Part) -> PartResult:
            y_pred = keras_layers.forward(model, part.x, training=False)
            _, shown, each = losses_of_part(model, part, y_pred, training=False)
            names.update(model.compute_metrics(part.x, part.y, y_pred, sample_weight=part.sample_weight))
            return (shown, each), []

        _track(model, batch, batch.add_up(evaluate, _zeros(model))[0])
        return _results(model, names)

    return test_step


def _ops_until_now() -> int:
    """How many ops the graph has that is traced; none where a step runs eagerly."""
    return 0 if tf.executing_eagerly() else len(tf.compat.v1.get_default_graph().get_operations())


def _differentiate(tape: tf.GradientTape, loss: Any, weights: list[Any], begin: int) -> list[Any]:
    """Computes gradients once all is written that ops since `begin` write.

    What metrics wait for would lie between large tensors all through the backward pass, and so would logs.
    """
    ops = [] if tf.executing_eagerly() else tf.compat.v1.get_default_graph().get_operations()[begin:]
    with tf.control_dependencies(writing(ops)):
        one = tf.ones_like(loss)
    gradients: list[Any] = tape.gradient(loss, weights, output_gradients=one)
    return gradients


def _update(model: keras.Model, gradients: list[Any], weights: list[Any]) -> None:
    model.optimizer.apply_gradients(zip(gradients, weights, strict=True))


def _zeros(model: keras.Model) -> Sums:
    return tf.constant(0.0, tf.float64), tf.zeros([len(keras_training.loss_metrics(model))], tf.float64)


def _track(model: keras.Model, batch: PartedBatch, sums: Sums) -> None:
    """Gives the batch's loss to the metrics that follow it."""
    loss, each = sums
    # Keras weighs single outputs' losses only where the graph knows the size.
    weight: Any = batch.static_samples
    if batch.share is not None:
        # Metrics' states are sums: those of all ranks add up to what the whole batch's loss would have given.
        loss, each = (batch.share.as_mean(value, batch.samples) for value in sums)
        weight = tf.ones([], tf.float64) * batch.share.fraction(batch.samples)
    keras_training.track_loss(model, loss, batch.samples)
    for index, metric in enumerate(keras_training.loss_metrics(model)):
        metric.update_state(each[index], sample_weight=weight)


def _results(model: keras.Model, names: set[str]) -> dict[str, Any]:
    """Returns all metrics as a Keras step does."""
    logs: dict[str, Any] = model.get_metrics_result()
    if set(logs) != names:
        raise InvalidInput(
            "With micro-batches the logs of a step are the model's metrics, but an overridden compute_metrics "
            "returned others",
            received=sorted(names ^ set(logs)),
            remedy="Keep what it computes in metrics of the model and return self.get_metrics_result()",
        )
    return logs
