"""Calling a model, or any loss function, so that the backward pass computes activations again."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

from memfit.budgets.peaks import device_name
from memfit.compat.keras_globals import names_from_the_first
from memfit.compat.keras_layers import added_losses, copy_mask, logits_of, set_added_loss, set_logits
from memfit.compat.tf_graphs import Op, Tensor, compiles_with_xla, gradients
from memfit.steps.rematerialisation.backward_order import list_gradient_ops
from memfit.steps.rematerialisation.call_names import steady_names
from memfit.steps.rematerialisation.rewrite.backward import check_names, recompute_in_backward_pass
from memfit.steps.rematerialisation.rewrite.concats import split_concats
from memfit.steps.rematerialisation.rewrite.split_convolutions import split_convolutions
from memfit.steps.rematerialisation.rewrite.volumes import split_volumes
from memfit.steps.segments import Segments
from memfit.steps.writes import writing

# Keras computes a cross-entropy from the logits where it sees that the probabilities are made by one of these, and
# otherwise from probabilities that are cut off at 1e-7: another loss, with other gradients.
_LAST_OPS = {"Softmax": tf.nn.softmax, "Sigmoid": tf.nn.sigmoid}


def rematerialise(model: Any, segments: Segments) -> Callable[..., Any]:
    """Returns a function to call in a training step in place of the model.

    What it returns, the gradients, the losses that layers add, the masks, and how the variables change are those
    of `model(x, training=True)`. It saves memory where a step is traced (`tf.function`, with `jit_compile` or
    without), not when run eagerly: there it is the plain call.

    Args:
        model: The Keras model.
        segments: One of what `find_choices` gave for this model or for a copy of it.

    Returns:
        A function of `x` and `training`, as the model itself.

    Raises:
        InvalidInput: When called, if the segments were chosen for another model.

    Example:
        call = rematerialise(model, find_choices(model, batch_size=64)[-1])
        with tf.GradientTape() as tape:
            loss = loss_fn(y, call(x, training=True))
        tape.gradient(loss, model.trainable_variables)
    """

    @tf.autograph.experimental.do_not_convert  # plain Python at tracing time, and nothing to convert
    def call(x: Any, training: bool = True) -> Any:
        if not training or tf.executing_eagerly():
            return model(x, training=training)
        structures: list[Any] = []

        @tf.custom_gradient
        def forward(*tensors: Any) -> Any:
            outputs, structure, backward = _call_forward(
                model, segments, tf.nest.pack_sequence_as(x, tensors)
            )
            structures.append(structure)
            return outputs, backward

        passed = iter(forward(*tf.nest.flatten(x)))
        y, losses = structures[0]
        outputs = [_finish_output(output, passed) for output in tf.nest.flatten(y)]
        for (layer, number, _), loss in zip(losses, passed, strict=True):
            set_added_loss(layer, number, loss)
        return tf.nest.pack_sequence_as(y, outputs)

    return call


def differentiate(
    compute: Callable[[], tuple[Any, Any]], weights: Sequence[Any], segments: Segments
) -> tuple[Any, Any, list[Any]]:
    """Computes a loss and its gradients in the graph that is traced, keeping no more than segments say.

    Values, gradients, and how the variables change are those of a plain `tf.GradientTape`.

    Args:
        compute: Returns the loss, a scalar, and anything else.
        weights: TensorFlow's variables to differentiate by.
        segments: One of what `find_choices_of_loss` gave for this function.

    Returns:
        The loss, the rest, and the gradients, None for a weight that has none.

    Raises:
        InvalidInput: If the segments were chosen for another function.
    """
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    with tf.name_scope("rematerialised") as scope, names_from_the_first():
        loss, rest = compute()
    forward = graph.get_operations()[before:]
    check_names(forward, scope, segments)
    # What metrics wait for would lie between large tensors all through the backward pass.
    with tf.control_dependencies(writing(forward)):
        one = tf.ones_like(loss)
    outputs = [
        tensor for tensor in tf.nest.flatten((loss, rest), expand_composites=True) if tf.is_tensor(tensor)
    ]
    with tf.name_scope("gradient_tape"):  # as a tape names them, by which a recording knows the backward pass
        gradients = build_gradients(forward, scope, segments, [(loss, one)], [], weights, outputs)
    return loss, rest, gradients


def run_one_by_one() -> AbstractContextManager[None]:
    """Lets functions that are called inside run one op after the other, and in the same order every time.

    Several threads run ops in another order in every step, with other gaps in the memory: a ResNet50 trained in one
    step and ran out in the next. The kernels themselves still use all cores; six steps of a MobileNetV2 took as
    long as with threads. Only on a CPU: this executor takes no graph cut for several devices, as a GPU's is.
    """
    if not device_name().startswith("CPU"):
        return nullcontext()
    return tf.experimental.function_executor_type("SINGLE_THREADED_EXECUTOR")


def _call_forward(model: Any, segments: Segments, x: Any) -> tuple[list[Tensor], Any, Callable[..., Any]]:
    """Calls the model, and returns its outputs and losses, their structure, and the function for gradients."""
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    with tf.name_scope("rematerialised") as scope, steady_names(model):
        y = model(x, training=True)
    losses = added_losses(model)
    outputs = [tensor for output in tf.nest.flatten(y) for tensor in _list_passed(output)]
    outputs += [loss for _, _, loss in losses]
    forward = graph.get_operations()[before:]
    check_names(forward, scope, segments)
    inputs = tf.nest.flatten(x)

    def backward(*incoming: Tensor, variables: Sequence[Any] = ()) -> Any:
        trained = {variable.value.ref() for variable in model.trainable_variables}
        weights = [variable for variable in variables if variable.ref() in trained]
        pairs = [
            (output, gradient)
            for output, gradient in zip(outputs, incoming, strict=True)
            if output.dtype.is_floating and not _is_zero(gradient)
        ]
        results = build_gradients(forward, scope, segments, pairs, inputs, weights, outputs)
        by_weight = dict(zip((weight.ref() for weight in weights), results[len(inputs) :], strict=True))
        of_variables = [by_weight.get(variable.ref()) for variable in variables]
        return (results[: len(inputs)], of_variables) if variables else results[: len(inputs)]

    return outputs, (y, losses), backward


def build_gradients(
    forward: Sequence[Op],
    scope: str,
    segments: Segments,
    pairs: Sequence[tuple[Tensor, Tensor]],
    inputs: Sequence[Tensor],
    weights: Sequence[Any],
    outputs: Sequence[Tensor],
) -> list[Tensor | None]:
    """Builds the gradients of inputs and weights from pairs of an output and its gradient.

    Args:
        forward: The forward ops, under the name scope `scope`.
        outputs: All outputs, which cannot be replaced any more.
    """
    graph, current = forward[0].graph, tf.compat.v1.get_default_graph()
    first = len(current.get_operations())
    incoming = [gradient for _, gradient in pairs]
    results = gradients([output for output, _ in pairs], incoming, [*inputs, *weights], graph)
    # A gradient that is built in another graph (that of a nested tf.function) is exact, but saves nothing.
    if current is not graph:
        return results
    compiled = compiles_with_xla(graph)
    backward, results = split_concats(graph.get_operations()[first:], results, at_once=compiled)
    if not compiled:
        backward, results = split_volumes(backward, results)
    wanted = list_gradient_ops(results[len(inputs) :])
    find_latest = recompute_in_backward_pass(
        forward, backward, scope, segments, incoming=incoming, wanted=wanted
    )
    results = [find_latest(gradient) for gradient in results]
    if segments.split_convolutions and compiled:
        graph_ops = [*forward, *graph.get_operations()[first:]]
        find_split = split_convolutions(graph_ops, segments, outputs)
        results = [find_split(gradient) for gradient in results]
    return results


def _list_passed(output: Tensor) -> list[Tensor]:
    """Lists what has to be passed on of an output so that `_finish_output` can make it whole."""
    logits = logits_of(output)
    if logits is not None:
        return [output, logits]
    return [output.op.inputs[0]] if output.op.type in _LAST_OPS else [output]


def _finish_output(output: Tensor, passed: Iterator[Tensor]) -> Tensor:
    """Returns an output made of what was passed on, which is taken from `passed`."""
    if logits_of(output) is not None:
        new = next(passed)
        set_logits(new, next(passed))
    elif output.op.type in _LAST_OPS:
        new = _LAST_OPS[output.op.type](next(passed))
    else:
        new = next(passed)
    copy_mask(output, new)
    return new


def _is_zero(gradient: Tensor | None) -> bool:
    """Whether nothing comes back to an output: TensorFlow hands zeros over for one that the loss does not read."""
    if gradient is None or gradient.op.type == "ZerosLike":
        return True
    return gradient.op.type == "Const" and not tf.get_static_value(gradient).any()
