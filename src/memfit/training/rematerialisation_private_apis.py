"""The private TensorFlow APIs that rewriting a graph takes; nothing public changes an op's input.

Checked with TensorFlow 2.21.0.
"""

from collections.abc import Sequence
from typing import Any


def set_input(op: Any, number: int, tensor: Any) -> None:
    """Lets an op that is already in the graph read another tensor."""
    op._update_input(number, tensor)


def run_after(op: Any, other: Any) -> None:
    """Lets an op that is already in the graph wait for another."""
    op._add_control_input(other)


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
    for old, new in zip(op.outputs, copy.outputs, strict=True):
        new.set_shape(old.shape)
    return copy


def compiles_with_xla(graph: Any) -> bool:
    """Says whether the graph is traced for `jit_compile=True`."""
    from tensorflow.python.ops import control_flow_util

    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))
