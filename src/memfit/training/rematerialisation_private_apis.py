"""The private TensorFlow APIs that rewriting a graph takes; nothing public changes an op's input.

Checked with TensorFlow 2.21.0.
"""

from collections.abc import Sequence
from typing import Any


def set_input(op: Any, number: int, tensor: Any) -> None:
    """Lets an op that is already in the graph read another tensor."""
    op._update_input(number, tensor)


def clone(op: Any, inputs: Sequence[Any], after: Sequence[Any]) -> Any:
    """Makes a copy of an op in its graph, with other inputs, that runs after some ops."""
    attributes = {
        name: value for name, value in op.node_def.attr.items() if name not in ("_class", "_output_shapes")
    }
    with op.graph.control_dependencies(list(after)):
        # The public `create_op` is deprecated and would warn; this one is what TensorFlow itself calls.
        copy = op.graph._create_op_internal(
            op.type,
            list(inputs),
            dtypes=[output.dtype for output in op.outputs],
            name=f"recomputed/{op.name}",
            attrs=attributes,
            op_def=op.op_def,
        )
    for old, new in zip(op.outputs, copy.outputs, strict=True):
        new.set_shape(old.shape)
    return copy


def compiles_with_xla(graph: Any) -> bool:
    """Says whether the graph is traced for `jit_compile=True`."""
    from tensorflow.python.ops import control_flow_util

    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


def barrier(tensors: Sequence[Any]) -> list[Any]:
    """Returns the tensors in such a way that XLA computes all of them first, and can merge nothing behind it."""
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    return list(gen_xla_ops.xla_optimization_barrier(list(tensors)))
