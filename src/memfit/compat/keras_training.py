"""Keras's private parts of training: compiled losses and metrics, building, strategies, callbacks.

Checked with Keras 3.12.0 and 3.15.1.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from memfit.compat.attributes import overridden
from memfit.compat.keras_layers import all_layers, functional_of, output_structure

# The attributes in which a callback keeps its model.
CALLBACK_MODEL = ("_model", "model")


def has_strategy(model: Any) -> bool:
    """Whether a model was made, or would be trained, under a distribution strategy."""
    import tensorflow as tf

    return bool(tf.distribute.has_strategy()) or model._distribute_strategy is not None


@contextmanager
def knowing_if_eager(model: Any) -> Iterator[None]:
    """Lets a model say for a while that its steps run eagerly, where `tf.config.run_functions_eagerly` was called.

    Keras does not know either: it makes a function of a step, which TensorFlow then runs op by op, without XLA.
    """
    import keras
    import tensorflow as tf

    if not isinstance(model, keras.Model) or model.run_eagerly or not tf.config.functions_run_eagerly():
        yield
        return
    compiled = model.jit_compile
    model.run_eagerly, model.jit_compile = True, False
    try:
        yield
    finally:
        model.run_eagerly, model.jit_compile = False, compiled


def flush(callbacks: Any) -> None:
    """Waits for callbacks that Keras runs in threads."""
    callbacks._flush_futures()


def progress_bar(callbacks: Any) -> Any:
    """The callback that prints the progress, or None."""
    return callbacks._progbar


def plain_logs(logs: Any) -> Any:
    """Logs of a step as plain numbers, as Keras gives them to callbacks."""
    from keras.src.utils.python_utils import pythonify_logs

    return pythonify_logs(logs)


def build(model: Any, x: Any, y: Any, sample_weight: Any, *, losses_alone: bool = False) -> None:
    """Creates the variables of the model, its metrics and its optimizer, if they do not exist yet.

    Stock Keras creates them while it traces the first step; inside a loop's body TensorFlow forbids that.

    Args:
        losses_alone: Whether to leave out those of metrics and optimizer.
    """
    compiled, graph = _compile_loss(model), functional_of(model)
    if losses_alone and compiled is not None and graph is not None and graph.built:
        outputs = output_structure(model)
        if not compiled.built and _have_same_structure(y, outputs):
            compiled.build(y, outputs)
        if compiled.built:
            return
    with overridden(model, _compile_metrics=None, optimizer=None) if losses_alone else nullcontext():
        parts = (compiled, model._compile_metrics, model.optimizer)
        unbuilt = any(part is not None and not part.built for part in parts)
        if unbuilt or not all(layer.built for layer in all_layers(model)):
            model._symbolic_build(data_batch=(x, y, sample_weight))


def _have_same_structure(y: Any, outputs: Any) -> bool:
    """Whether there is a target for each output; Keras finds out whose they are where some outputs have none."""
    import keras

    try:
        keras.tree.assert_same_structure(y, outputs)
    except (TypeError, ValueError):
        return False
    return True


def compute_loss(model: Any, x: Any, y: Any, y_pred: Any, sample_weight: Any, *, training: bool) -> Any:
    """Calls `model.compute_loss` as Keras's own steps do (an override may lack `training`)."""
    return model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)


def compute_compiled_loss(model: Any, y: Any, y_pred: Any, sample_weight: Any) -> Any:
    """Computes the losses given to `compile()`, without any other."""
    return _compile_loss(model)(y, y_pred, sample_weight)


def track_loss(model: Any, loss: Any, samples: Any) -> None:
    """Gives the batch's loss to the metric named "loss", as Keras's own steps do."""
    compiled_mark(model).update_state(loss, sample_weight=samples)


def losses(model: Any) -> list[Any]:
    """The Keras losses of a built model, one for each output that has one."""
    compiled = _compile_loss(model)
    return [] if compiled is None else [entry.loss for entry in _flat_losses(compiled)]


def loss_metrics(model: Any) -> list[Any]:
    """The metrics that follow the losses of the single outputs; empty for a model with one output."""
    compiled = _compile_loss(model)
    return [] if compiled is None else list(compiled.metrics)


def compiled_mark(model: Any) -> Any:
    """The metric named "loss": it is another object after every `compile()`."""
    return model._loss_tracker


def compile_arguments(model: Any) -> dict[str, Any]:
    """What `compile` was called with, as objects: its own `get_compile_config` needs every function registered."""
    return dict(model._compile_config.config)


def kept_steps(model: Any) -> dict[Any, Any]:
    """Where steps that were compiled for a model are kept until its next `compile()`, as Keras keeps its own."""
    mark = compiled_mark(model)
    if "memfit_steps" not in vars(mark):
        object.__setattr__(mark, "memfit_steps", _KeptSteps())
    kept: dict[Any, Any] = vars(mark)["memfit_steps"]
    return kept


@contextmanager
def replaced_losses(
    model: Any, stand_ins: Sequence[Callable[..., Any]], metrics: Sequence[Any]
) -> Iterator[None]:
    """Lets `compute_loss` call stand-ins for the model's losses and for the metrics that follow them."""
    compiled = _compile_loss(model)
    if compiled is None:
        yield
        return
    entries, followers = _flat_losses(compiled), compiled._metrics
    pairs = zip(entries, stand_ins, strict=True)
    compiled._flat_losses = [entry._replace(loss=stand_in) for entry, stand_in in pairs]
    compiled._metrics = list(metrics)
    try:
        yield
    finally:
        compiled._flat_losses, compiled._metrics = entries, followers


def replaced_additional_loss(
    model: Any, aggregate: Callable[[Any, Any], Any]
) -> AbstractContextManager[None]:
    """Lets `compute_loss` add `aggregate(loss, total)` for every loss of `add_loss` and of the regularisers."""
    original = model._aggregate_additional_loss
    return overridden(model, _aggregate_additional_loss=lambda loss: aggregate(loss, original(loss)))


def masked_weights(sample_weight: Any, mask: Any, dtype: str, reduction: str = "sum") -> Any:
    """Merges a mask into sample weights as Keras's losses do, entries masked out weighing 0."""
    from keras.src.losses.loss import apply_mask

    return apply_mask(sample_weight, mask, dtype=dtype, reduction=reduction)


def aligned(values: Any, weights: Any) -> tuple[Any, Any]:
    """Brings values and their weights to one rank as Keras's losses do."""
    from keras.src.losses.loss import squeeze_or_expand_to_same_rank

    return squeeze_or_expand_to_same_rank(values, weights)


def _compile_loss(model: Any) -> Any:
    """What `compile(loss=...)` made of the losses, or None."""
    return model._compile_loss


def _flat_losses(compiled: Any) -> Any:
    """The losses of the single outputs, as named tuples with a `loss`."""
    return compiled._flat_losses


class _KeptSteps(dict[Any, Any]):
    """Compiled steps stay behind where a model is copied or sent to another process: a graph cannot be."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()
