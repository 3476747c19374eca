"""A network traced for tiles of one size: computing a tile, and what that is predicted to take."""

import math
from typing import Any

import keras
import tensorflow as tf

from memfit.compat.keras_layers import call_to_infer, logits_of, run_through
from memfit.compat.tf_graphs import Graph, Tensor
from memfit.training.tiles.grid import Sizes

# Keras computes a cross-entropy from what these ops read, where it sees that they made the probabilities.
_LAST_OPS = ("Sigmoid", "Softmax")
# Their output is their input's buffer.
_ALIASES = frozenset({"Identity", "IdentityN", "Reshape", "Squeeze", "ExpandDims", "StopGradient"})


class TileNetwork:
    """A functional model for one tile at a time, whatever size its input was declared with.

    Attributes:
        predicted: The bytes of the tensors that are alive at the same time, by the traced graph.
    """

    def __init__(self, model: Any, tile: Sizes) -> None:
        inputs = model.inputs[0]
        self._dtype = inputs.dtype
        function = tf.function(
            lambda x: _infer(model, x),
            autograph=False,
            jit_compile=bool(getattr(model, "jit_compile", False)),
        )
        spec = tf.TensorSpec((1, *tile, inputs.shape[-1]), self._dtype)
        self._function = function.get_concrete_function(spec)
        self.predicted = _count_alive(self._function.graph)

    def __call__(self, tile: Any) -> tuple[list[Any], list[Any]]:
        """Returns the outputs (flat) of one tile, and the logits of those that have some; None for the rest."""
        outputs, logits = self._function(tf.cast(tile, self._dtype))
        return outputs, [logit if logit.shape.rank else None for logit in logits]


def _infer(model: Any, x: Any) -> tuple[list[Any], list[Any]]:
    outputs = keras.tree.flatten(run_through(model, x, call_to_infer))
    return outputs, [_find_logits(output) for output in outputs]


def _find_logits(output: Any) -> Any:
    """What a loss takes in place of probabilities; a number where it takes the output itself."""
    logits = logits_of(output)
    if logits is None and output.op.type in _LAST_OPS:
        logits = output.op.inputs[0]
    return tf.constant(0.0) if logits is None else logits


def _count_alive(graph: Graph) -> int:
    """Counts the bytes that are alive at the same time when ops run in the order in which they were made."""
    ops = graph.get_operations()
    roots: dict[Any, Any] = {}
    last: dict[Any, int] = {}
    for place, op in enumerate(ops):
        for tensor in op.inputs:
            last[roots[tensor.ref()]] = place
        for number, tensor in enumerate(op.outputs):
            aliased = op.type in _ALIASES and number < len(op.inputs)
            roots[tensor.ref()] = roots[op.inputs[number].ref()] if aliased else tensor.ref()
    for tensor in graph.outputs:
        last[roots[tensor.ref()]] = len(ops)
    alive = most = 0
    ends: dict[int, int] = {}
    for place, op in enumerate(ops):
        for tensor in op.outputs:
            size = _bytes(tensor) if roots[tensor.ref()] == tensor.ref() and tensor.ref() in last else 0
            alive += size
            ends[last.get(tensor.ref(), place)] = ends.get(last.get(tensor.ref(), place), 0) + size
        most = max(most, alive)
        alive -= ends.pop(place, 0)
    return most


def _bytes(tensor: Tensor) -> int:
    """The bytes of a tensor; none for a read variable, which is the variable's own buffer, and for resources."""
    if tensor.op.type == "ReadVariableOp" or not tensor.dtype.size or not tensor.shape.is_fully_defined():
        return 0
    return math.prod(tensor.shape) * int(tensor.dtype.size)
