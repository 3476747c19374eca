"""Tracing a model: its forward and backward pass as TensorFlow really builds them, without running either."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from memfit.compat.keras_layers import added_losses, forget_losses
from memfit.compat.tf_graphs import Op, gradients
from memfit.errors import InvalidInput
from memfit.steps.rematerialisation.backward_order import list_gradient_ops, order_backward_ops
from memfit.steps.rematerialisation.call_names import steady_names
from memfit.steps.rematerialisation.rewrite.backward import split_sums
from memfit.steps.rematerialisation.rewrite.concats import split_concats
from memfit.steps.rematerialisation.rewrite.volumes import split_volumes
from memfit.steps.rematerialisation.trace import Trace, read_trace


@dataclass(frozen=True)
class ModelTrace:
    """The same training call twice.

    Attributes:
        stock: With the backward ops as TensorFlow makes them.
        rewritten: With the backward ops as a rematerialised step has them.
    """

    stock: Trace
    rewritten: Trace


def trace_model(model: Any, batch_size: int, specs: Any = None, *, compiled: bool = False) -> ModelTrace:
    """Traces one training call of a model and its gradients.

    Args:
        specs: Tensor specs (with the batch axis) in the structure that the model is called with; needed only
            for models that do not know their inputs (subclassed ones).
        compiled: Whether XLA compiles the step: its backward pass goes through one branch after the other, and
            nothing is written in place.

    Raises:
        InvalidInput: If the shapes of the model's inputs are not known.
    """
    specs = find_input_specs(model, batch_size) if specs is None else specs

    def call(x: Any) -> list[Any]:
        with steady_names(model):
            outputs = model(x, training=True)
        return [*tf.nest.flatten(outputs), *(loss for _, _, loss in added_losses(model))]

    traces = trace_call(
        call,
        lambda: [variable.value for variable in model.trainable_variables],
        (specs,),
        batch_size,
        compiled=compiled,
    )
    forget_losses(model)
    return traces


def trace_call(
    call: Callable[..., Sequence[Any]],
    list_weights: Callable[[], Sequence[Any]],
    specs: tuple[Any, ...],
    batch_size: int,
    *,
    compiled: bool,
) -> ModelTrace:
    """Traces a function and the gradients of what it returns.

    Args:
        call: Takes tensors and returns those whose gradients a training step computes.
        list_weights: Returns the variables to differentiate by, once the function has been called.
        specs: Tensor specs of its arguments.
    """
    traces: list[ModelTrace] = []

    def step(*x: Any) -> None:
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        with tf.name_scope("rematerialised") as scope:
            outputs = call(*x)
        outputs = [output for output in outputs if output.dtype.is_floating or output.dtype.is_complex]
        forward = graph.get_operations()[before:]
        weights = list(list_weights())
        traces.append(read_traces(forward, scope, outputs, weights, batch_size, compiled=compiled)[0])

    tf.function(step, autograph=False).get_concrete_function(*specs)
    return traces[0]


def read_traces(
    forward: Sequence[Op],
    scope: str,
    outputs: Sequence[Any],
    weights: Sequence[Any],
    batch_size: int,
    *,
    compiled: bool,
) -> tuple[ModelTrace, list[Any]]:
    """Builds the gradients of forward ops in their graph, which is not for running, and reads both traces.

    Returns:
        The traces, and the gradients.
    """
    graph = forward[0].graph if forward else tf.compat.v1.get_default_graph()
    grad_ys = [tf.ones_like(output) for output in outputs]
    after = len(graph.get_operations())
    results = gradients(outputs, grad_ys, list(weights), graph)
    backward = order_backward_ops(forward, graph.get_operations()[after:], list_gradient_ops(results))
    stock = read_trace(forward, backward, scope, batch_size)
    backward, results = split_concats(graph.get_operations()[after:], results)
    if not compiled:
        backward, results = split_volumes(backward, results)
    backward = order_backward_ops(
        forward, split_sums(backward), list_gradient_ops(results), by_branch=compiled
    )
    traces = (stock, read_trace(forward, backward, scope, batch_size))
    if compiled:
        traces = (replace(traces[0], in_place=False), replace(traces[1], in_place=False))
    return ModelTrace(*traces), results


def find_input_specs(model: Any, batch_size: int) -> Any:
    """Returns tensor specs of a model's inputs at a batch size, in the structure it is called with.

    Raises:
        InvalidInput: If the model does not know its inputs.
    """
    try:
        inputs = model.input  # the structure, as `model.inputs` is flat
    except (AttributeError, ValueError):
        flat = getattr(model, "inputs", None)
        inputs = flat[0] if flat and len(flat) == 1 else None
    if inputs is None:
        raise InvalidInput(
            "The shapes of a subclassed model's inputs are not known from the model",
            received=type(model).__name__,
            remedy="Pass specs=, tensor specs with the batch axis in the structure the model is called with",
        )
    return tf.nest.map_structure(lambda x: tf.TensorSpec((batch_size, *x.shape[1:]), x.dtype), inputs)
