"""The private TensorFlow and Keras APIs this room uses, because nothing public can tell.

Checked with TensorFlow 2.21.0 and Keras 3.15.1.
"""

from collections.abc import Sequence
from typing import Any


def gradients(ys: Sequence[Any], grad_ys: Sequence[Any], xs: Sequence[Any], graph: Any) -> list[Any]:
    """Builds the gradients of `ys`, tensors of `graph`, in the current graph; None where there is none.

    `tf.gradients` is the same, but only inside one graph; the gradient of a nested `tf.function` is built in
    another. The name is not TensorFlow's "gradients", which grappler's memory optimizer looks for.
    """
    from tensorflow.python.ops import gradients_util

    return list(
        gradients_util._GradientsHelper(ys, xs, grad_ys, name="rematerialised_gradients", src_graph=graph)
    )


def forward_op_of(op: Any) -> Any:
    """Returns the forward op whose gradient function made `op`, or None."""
    return op._original_op


def belong_together(op: Any, other: Any) -> None:
    """Lets an op count as made by the gradient function that made another."""
    op._original_op = other._original_op


def belong_to(op: Any, forward: Any) -> None:
    """Lets an op count as made by the gradient function of a forward op."""
    op._original_op = forward


def added_losses(model: Any) -> list[tuple[Any, int, Any]]:
    """Lists the losses that layers added in the call just made: the layer, the place in its list, the tensor."""
    return [
        (layer, place, loss) for layer in model._flatten_layers() for place, loss in enumerate(layer._losses)
    ]


def set_added_loss(layer: Any, place: int, loss: Any) -> None:
    """Puts another tensor in the place of a loss that a layer added."""
    layer._losses[place] = loss


def forget_losses(model: Any) -> None:
    """Drops the losses of a call, which would otherwise keep the tensors of its graph alive."""
    model._clear_losses()


def all_layers(model: Any) -> list[Any]:
    """The model and every layer in it, however deeply nested, each once."""
    return list(model._flatten_layers())


def layers_inside(layer: Any) -> list[Any]:
    """The layers directly inside of a layer or a model."""
    return list(layer._layers)


def has_strategy(model: Any) -> bool:
    """Whether a model was made, or would be trained, under a distribution strategy."""
    import tensorflow as tf

    return bool(tf.distribute.has_strategy()) or model._distribute_strategy is not None


def set_input(op: Any, number: int, tensor: Any) -> None:
    """Lets an op that is already in the graph read another tensor."""
    op._update_input(number, tensor)


def clone(op: Any, inputs: Sequence[Any]) -> Any:
    """Makes a copy of an op in its graph, with other inputs."""
    attributes = {
        name: value for name, value in op.node_def.attr.items() if name not in ("_class", "_output_shapes")
    }
    # The public `create_op` is deprecated and would warn; this one is what TensorFlow itself calls.
    copy = op.graph._create_op_internal(
        op.type,
        list(inputs),
        dtypes=[output.dtype for output in op.outputs],
        name=f"recomputed/{op.name}",
        attrs=attributes,
        op_def=op.op_def,
    )
    copy._original_op = op._original_op
    return copy


def copy_mask(source: Any, target: Any) -> None:
    """Gives a tensor the mask that Keras attached to another."""
    from keras.src.backend.common.masking import get_keras_mask, set_keras_mask

    mask = get_keras_mask(source)
    if mask is not None:
        set_keras_mask(target, mask)
