"""Tracing a model: its forward and backward pass as TensorFlow really builds them, without running either."""

from dataclasses import dataclass, replace
from typing import Any

from memfit.compat.keras_layers import added_losses, forget_losses
from memfit.compat.tf_graphs import gradients
from memfit.errors import InvalidInput
from memfit.steps.rematerialisation.backward_order import list_gradient_ops, order_backward_ops
from memfit.steps.rematerialisation.rewrite.concats import split_concats
from memfit.steps.rematerialisation.rewrite.sums import split_sums
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
    import tensorflow as tf

    specs = find_input_specs(model, batch_size) if specs is None else specs
    traces: list[ModelTrace] = []

    def step(x: Any) -> None:
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        with tf.name_scope("rematerialised") as scope:
            y = model(x, training=True)
        outputs = [*tf.nest.flatten(y), *(loss for _, _, loss in added_losses(model))]
        outputs = [output for output in outputs if output.dtype.is_floating or output.dtype.is_complex]
        forward = graph.get_operations()[before:]
        grad_ys = [tf.ones_like(output) for output in outputs]
        after = len(graph.get_operations())
        weights = [variable.value for variable in model.trainable_variables]
        results = gradients(outputs, grad_ys, weights, graph)
        backward = order_backward_ops(forward, graph.get_operations()[after:], list_gradient_ops(results))
        stock = read_trace(forward, backward, scope, batch_size)
        backward, results = split_concats(graph.get_operations()[after:], results)
        if not compiled:
            backward, results = split_volumes(backward, results)
        backward = order_backward_ops(
            forward, split_sums(backward), list_gradient_ops(results), by_branch=compiled
        )
        traces.append(ModelTrace(stock, read_trace(forward, backward, scope, batch_size)))

    tf.function(step, autograph=False).get_concrete_function(specs)
    forget_losses(model)
    if not compiled:
        return traces[0]
    stock, rewritten = (replace(trace, in_place=False) for trace in (traces[0].stock, traces[0].rewritten))
    return ModelTrace(stock, rewritten)


def find_input_specs(model: Any, batch_size: int) -> Any:
    """Returns tensor specs of a model's inputs at a batch size, in the structure it is called with.

    Raises:
        InvalidInput: If the model does not know its inputs.
    """
    import tensorflow as tf

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
