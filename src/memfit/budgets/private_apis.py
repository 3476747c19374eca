"""The private TensorFlow APIs this room uses, because nothing public can tell.

Checked with TensorFlow 2.19.0 and 2.21.0.
"""

import gc
import sys
from collections.abc import Iterator
from typing import Any


def is_initialised() -> bool:
    """Says whether TensorFlow has started its devices in this process, without starting them.

    The public calls that list logical devices or ask for memory figures initialise the devices themselves.
    """
    context = sys.modules.get("tensorflow.python.eager.context")
    return bool(context is not None and context.context()._initialized)


def forget_gradients_of_dead_graphs() -> None:
    """Drops what keeps the graphs, and so the weights, of deleted models allocated.

    In a traced step every `tf.custom_gradient` (and Keras's layers have some) registers a function by a new name
    in a global table, for good. The function holds tensors of the step's graph, the graph holds the variables it
    captured: the weights and optimizer slots outlive their model. A graph that no function runs any more cannot
    be differentiated again, so its entries can go.
    """
    if "tensorflow" not in sys.modules:
        return
    from tensorflow.python.framework import func_graph, ops

    gc.collect()
    in_use = {id(function.graph) for function in gc.get_objects() if _is_function(function)}
    registry: dict[str, Any] = ops.gradient_registry._registry
    for name in [name for name in registry if name.startswith("CustomGradient-")]:
        graphs = [
            graph for graph in _graphs(registry[name]["type"]) if isinstance(graph, func_graph.FuncGraph)
        ]
        if graphs and not any(id(outer) in in_use for graph in graphs for outer in _outwards(graph)):
            del registry[name]


def _is_function(thing: object) -> bool:
    return type(thing).__name__ in ("ConcreteFunction", "AtomicFunction") and hasattr(thing, "graph")


def _graphs(function: Any, depth: int = 3) -> Iterator[Any]:
    """The graphs of the tensors that a function's closure holds, in it or in functions in it."""
    for cell in getattr(function, "__closure__", None) or ():
        try:
            held = cell.cell_contents
        except ValueError:  # an empty cell
            continue
        for thing in held if isinstance(held, list | tuple) else [held]:
            if hasattr(thing, "op") and hasattr(thing, "graph"):
                yield thing.graph
            elif depth and callable(thing):
                yield from _graphs(thing, depth - 1)


def _outwards(graph: Any) -> Iterator[Any]:
    while graph is not None:
        yield graph
        graph = getattr(graph, "outer_graph", None)
