"""TensorFlow's private parts of graphs: ops that are already there, gradients across graphs, XLA's ops.

Checked with TensorFlow 2.19.0 and 2.21.0.
"""

import gc
import sys
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any, TypeAlias

# TensorFlow's classes are not typed, and importing them here would import TensorFlow.
Op: TypeAlias = Any
Tensor: TypeAlias = Any
Graph: TypeAlias = Any


def forget_gradients_of_dead_graphs() -> None:
    """Drops what keeps the graphs, and so the weights, of deleted models allocated.

    In a traced step every `tf.custom_gradient` (and Keras's layers have some) registers a function by a new name
    in a global table, for good. The function holds tensors of the step's graph, the graph holds the variables it
    captured: the weights and optimizer slots outlive their model. A graph that no function runs any more cannot
    be differentiated again, so its entries can go.
    """
    if "tensorflow" not in sys.modules:
        return
    gc.collect()
    registry = _custom_gradients()
    for name in _list_gradients_of_dead_graphs(registry):
        del registry[name]
    gc.collect()


def _list_gradients_of_dead_graphs(registry: dict[str, Any]) -> list[str]:
    in_use = {id(function.graph) for function in gc.get_objects() if _is_function(function)}
    dead = []
    for name in [name for name in registry if name.startswith("CustomGradient-")]:
        graphs = [graph for graph in _graphs(registry[name]["type"]) if hasattr(graph, "outer_graph")]
        if graphs and not any(id(outer) in in_use for graph in graphs for outer in _outwards(graph)):
            dead.append(name)
    return dead


def gradients(ys: Sequence[Any], grad_ys: Sequence[Any], xs: Sequence[Any], graph: Graph) -> list[Any]:
    """Builds the gradients of `ys`, tensors of `graph`, in the current graph; None where there is none.

    `tf.gradients` is the same, but only inside one graph; the gradient of a nested `tf.function` is built in
    another. The name is not TensorFlow's "gradients", which grappler's memory optimizer looks for.
    """
    from tensorflow.python.ops import gradients_util

    return list(
        gradients_util._GradientsHelper(ys, xs, grad_ys, name="rematerialised_gradients", src_graph=graph)
    )


def forward_op_of(op: Op) -> Any:
    """Returns the forward op whose gradient function made `op`, or None."""
    return op._original_op


def belong_together(op: Op, other: Op) -> None:
    """Lets an op count as made by the gradient function that made another."""
    belong_to(op, forward_op_of(other))


def belong_to(op: Op, forward: Op) -> None:
    """Lets an op count as made by the gradient function of a forward op."""
    op._original_op = forward


def has_each_row_once(gradient: Any) -> bool:
    """Whether a gradient of rows, in a graph, names no row twice because they were looked up by unique numbers.

    That is how `tf.nn.embedding_lookup_sparse` looks them up, by which Keras multiplies with a sparse matrix.
    """
    op = gradient.indices.op
    while op.type in ("Reshape", "Cast", "Identity"):
        op = op.inputs[0].op
    return bool(op.type == "Unique")


def make_variable(value: Tensor, shape: Any = None) -> Any:
    """Makes a variable (of any shape, by default) while a function is traced, unseen by it.

    A function that sees `tf.Variable` make one is traced once more from the start.
    """
    import tensorflow as tf
    from tensorflow.python.ops.resource_variable_ops import ResourceVariable

    return ResourceVariable(value, shape=tf.TensorShape(shape), trainable=False)


def known_lengths(shape: Any) -> list[int | None] | None:
    """Returns what a graph knows of a tensor that holds a shape; None where not even how many dimensions."""
    import tensorflow as tf
    from tensorflow.python.framework.tensor_util import constant_value_as_shape

    known = constant_value_as_shape(tf.convert_to_tensor(shape))
    return None if known.rank is None else list(known.as_list())


def set_input(op: Op, number: int, tensor: Tensor) -> None:
    """Lets an op that is already in the graph read another tensor."""
    op._update_input(number, tensor)


def redirect_readers(old: Tensor, new: Tensor, readers: Sequence[Op] | None = None) -> None:
    """Lets some ops (all that there are, by default) that read a tensor read another."""
    for reader in old.consumers() if readers is None else readers:
        for number, tensor in enumerate(reader.inputs):
            if tensor is old:
                set_input(reader, number, new)


def clone(op: Op, inputs: Sequence[Any]) -> Any:
    """Makes a copy of an op in its graph, with other inputs."""
    copy = _copy(op, inputs, op.graph, f"recomputed/{op.name}")
    belong_together(copy, op)
    return copy


def run_after(op: Op, other: Op) -> None:
    """Lets an op that is already in the graph wait for another."""
    op._add_control_input(other)


def compiles_with_xla(graph: Graph) -> bool:
    """Says whether the graph is traced for `jit_compile=True`."""
    from tensorflow.python.ops import control_flow_util

    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


def materialised(tensor: Tensor) -> Any:
    """Returns a tensor that XLA reads from memory, instead of computing it from its sources once more."""
    return together([tensor])[0]


def together(tensors: Sequence[Any]) -> list[Any]:
    """Returns tensors that XLA reads from memory, each when all of them are there."""
    return list(_xla_ops().xla_optimization_barrier(list(tensors)))


def take_slice(tensor: Tensor, begin: Any, size: Any) -> Any:
    """Returns rows of a tensor under XLA; where they reach beyond its end, the last rows."""
    import tensorflow as tf

    begins = tf.stack([begin, *[0] * (tensor.shape.rank - 1)])
    return _xla_ops().xla_dynamic_slice(tensor, begins, tf.concat([[size], tf.shape(tensor)[1:]], 0))


def put_slice(tensor: Tensor, rows: Any, begin: Any) -> Any:
    """Returns a tensor with other rows, written in place; the last ones where they reach beyond its end."""
    import tensorflow as tf

    begins = tf.stack([begin, *[0] * (tensor.shape.rank - 1)])
    return _xla_ops().xla_dynamic_update_slice(tensor, rows, begins)


def same_op(op: Op, inputs: Sequence[Any]) -> Any:
    """Makes a copy of an op of another graph in the one that is being built."""
    import tensorflow as tf

    return _copy(op, inputs, tf.compat.v1.get_default_graph(), "part")


def is_concrete_function(thing: object) -> bool:
    """Whether `thing` is a traced function; by its class's name, because `isinstance` runs code of proxies."""
    return type(thing).__name__ == "ConcreteFunction"


def tables_that_keep() -> dict[str, dict[Any, Any]]:
    """Returns TensorFlow's own tables that keep what a program has traced, by what one calls them."""
    if "tensorflow.python.ops.script_ops" not in sys.modules:
        return {}
    from tensorflow.python.ops import script_ops

    return {
        "TensorFlow's table of custom gradients": _custom_gradients(),
        "TensorFlow's table of Python functions": script_ops._py_funcs._funcs,
    }


def _custom_gradients() -> dict[str, Any]:
    from tensorflow.python.framework import ops

    return ops.gradient_registry._registry


def traces_functions(code: CodeType) -> bool:
    """Whether this is the code of TensorFlow's that is on the stack exactly while a function is traced."""
    return code.co_name == "_create_concrete_function" and "polymorphic_function" in code.co_filename


def is_traced_function(thing: object) -> bool:
    """Whether `thing` is what `tf.function` makes: it is traced for every new signature, and counts its traces."""
    return type(thing).__name__ == "Function" and hasattr(thing, "experimental_get_tracing_count")


def is_eager_tensor(thing: object) -> bool:
    """Whether `thing` is a tensor with a value; by its class's name, because `isinstance` runs code of proxies."""
    return type(thing).__name__ == "EagerTensor"


def _copy(op: Op, inputs: Sequence[Any], graph: Graph, name: str) -> Any:
    attributes = {
        key: value for key, value in op.node_def.attr.items() if key not in ("_class", "_output_shapes")
    }
    # The public `create_op` is deprecated and would warn; this one is what TensorFlow itself calls.
    return graph._create_op_internal(
        op.type,
        list(inputs),
        dtypes=[output.dtype for output in op.outputs],
        name=name,
        attrs=attributes,
        op_def=op.op_def,
    )


def _xla_ops() -> Any:
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    return gen_xla_ops


def _outwards(graph: Graph) -> Iterator[Any]:
    while graph is not None:
        yield graph
        graph = getattr(graph, "outer_graph", None)


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


def _is_function(thing: Any) -> bool:
    """Whether something is a function that runs by itself.

    A graph also keeps the bodies of its loops: that does not say that anything runs the graph.
    """
    if is_concrete_function(thing):
        return hasattr(thing, "graph")
    is_top = type(thing).__name__ == "AtomicFunction" and hasattr(thing, "graph")
    return is_top and not hasattr(thing.graph.outer_graph, "outer_graph")
