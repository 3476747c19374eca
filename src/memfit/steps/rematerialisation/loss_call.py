"""The gradients of any function that returns a loss, with activations computed again in the backward pass."""

from collections.abc import Callable, Sequence
from typing import Any

from memfit.steps.rematerialisation.model_call import build_gradients
from memfit.steps.rematerialisation.rewrite.backward import check_names
from memfit.steps.rematerialisation.segments import Segments
from memfit.steps.writes import writing


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
    import tensorflow as tf

    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    with tf.name_scope("rematerialised") as scope:
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
