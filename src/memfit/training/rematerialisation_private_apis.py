"""The private TensorFlow APIs that ordering a graph takes; nothing public lets an op wait that is already there.

Checked with TensorFlow 2.21.0.
"""

from typing import Any


def run_after(op: Any, other: Any) -> None:
    """Lets an op that is already in the graph wait for another."""
    op._add_control_input(other)


def compiles_with_xla(graph: Any) -> bool:
    """Says whether the graph is traced for `jit_compile=True`."""
    from tensorflow.python.ops import control_flow_util

    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))
