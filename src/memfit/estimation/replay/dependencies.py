"""Which ops of a step must wait for which: what a thread that waits for memory keeps from going on."""

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

# The names of an op's inputs, by its own.
Inputs = Mapping[str, tuple[str, ...]]


class Dependencies:
    """What waits for what, as far as the names of a step's ops tell.

    Args:
        inputs: `Recording.inputs`.
        ops: The op that asked for each allocation.

    Attributes:
        bits: For each allocation a bit that stands for its op; 0 where that is not known.
        after: For each the bits of its op and of all that wait for that.
        readers: For each the bits of the ops that read it, if it is an output.
    """

    def __init__(self, inputs: Inputs, ops: Sequence[str]) -> None:
        try:
            order = tuple(TopologicalSorter(inputs).static_order())
        except CycleError:
            order = ()
        nodes = {op: _node(op, inputs) if order else "" for op in set(ops)}
        asking = set(nodes.values())
        bits = {name: 1 << number for number, name in enumerate(order)}
        after = dict(bits)
        readers = dict.fromkeys(order, 0)
        for name in reversed(order):
            # Ops that ask for no memory hand on what they got.
            reading = bits[name] | (0 if name in asking else readers[name])
            for before in inputs.get(name, ()):
                after[before] |= after[name]
                readers[before] |= reading
        self.bits, self.after, self.readers = (
            [by_node.get(nodes[op], 0) for op in ops] for by_node in (bits, after, readers)
        )


def _node(op: str, inputs: Inputs) -> str:
    """Returns the op of the traced step that an op belongs to; "" if that is not known.

    What TensorFlow makes of one op, as the body of a loop, has names that begin with the op's.
    """
    while op and op not in inputs:
        op = op.rpartition("/")[0]
    return op
