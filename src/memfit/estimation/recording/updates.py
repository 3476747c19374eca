"""Tracing an optimizer's update once for all variables of a shape.

Python writes the update op by op for each variable, and takes two thirds of tracing a ResNet50 for it. Updates of
variables of one shape are the same ops on other tensors, so all but the first are copied as a graph.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from memfit.compat.keras_optimizers import around_updates, optimizer_slots, slot_number
from memfit.compat.tf_graphs import Graph, shapes_in_resource


def copy_updates(optimizer: Any) -> None:
    """Lets an optimizer that is only recorded copy the update of a variable from that of a like one."""
    while optimizer is not None:
        copying = _Copying(optimizer, optimizer.update_step)
        optimizer.update_step = copying
        around_updates(optimizer, copying.update_all)
        optimizer = getattr(optimizer, "inner_optimizer", None)


class _Copying:
    """Stands in for `update_step`, and knows the graph of the first update of each kind."""

    def __init__(self, optimizer: Any, update_step: Callable[[Any, Any, Any], None]) -> None:
        self._optimizer = optimizer
        self._update_step = update_step
        self._known: dict[Any, _Update] = {}
        self._slots: list[list[Any]] = []
        self._copies: list[tuple[_Update, list[Any], Any]] = []

    def __call__(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        import tensorflow as tf

        graph = tf.compat.v1.get_default_graph()
        if not isinstance(gradient, tf.Tensor) or not graph.building_function:
            self._update_step(gradient, variable, learning_rate)
            return
        key = (graph, tuple(variable.shape), variable.dtype, gradient.dtype, tuple(gradient.shape))
        known = self._known.get(key)
        if known is not None:
            self._copies.append((known, self._handles(variable), gradient))
            return
        begin = len(graph.get_operations())
        self._update_step(gradient, variable, learning_rate)
        operations = graph.get_operations()[begin:]
        with suppress(ValueError):  # and then the next is written as it always is
            self._known[key] = _update(graph, operations, self._handles(variable), gradient)

    def update_all(self, update: Callable[..., None], *args: Any) -> None:
        """Updates all variables, and makes the copies at the end."""
        update(*args)
        self._copy()

    def _copy(self) -> None:
        """Adds the copies to the graph that is built, all at once: TensorFlow goes through all of it for each."""
        import tensorflow as tf

        if not self._copies:
            return
        graph = tf.compat.v1.get_default_graph()
        definition = tf.compat.v1.GraphDef()
        definition.versions.CopyFrom(graph.graph_def_versions)
        inputs: dict[str, Any] = {}
        for number, (update, handles, gradient) in enumerate(self._copies):
            tensors = {name: graph.capture(handles[place]) for place, name in update.own.items()}
            tensors = {**update.shared, **tensors, update.gradient: gradient}
            inputs |= {f"{number}/{_plain(name)}": tensor for name, tensor in tensors.items()}
            update.add_to(definition, str(number))
        self._copies.clear()
        tf.graph_util.import_graph_def(definition, inputs, name="copy")

    def _handles(self, variable: Any) -> list[Any]:
        """The variable's own resource, and those of its slots."""
        number = slot_number(self._optimizer, variable)
        if not self._slots:
            self._slots = optimizer_slots(self._optimizer)
        slots = [slots[number] for slots in self._slots]
        return [variable.handle, *(slot.value.handle for slot in slots if slot is not None)]


@dataclass(frozen=True)
class _Update:
    """The ops of one update, and where their inputs come from.

    Attributes:
        definition: The ops as a GraphDef.
        gradient: Name of the gradient.
        own: Name of the n-th resource of the variable, by n.
        shared: Inputs that are the same for every variable, by name.
    """

    definition: Any
    gradient: str
    own: dict[int, str]
    shared: dict[str, Any]

    def add_to(self, definition: Any, scope: str) -> None:
        """Adds the ops under a scope; the inputs that come from outside of them are under it, too."""
        for node in self.definition.node:
            copy = definition.node.add()
            copy.CopyFrom(node)
            copy.name = f"{scope}/{node.name}"
            del copy.input[:]
            copy.input.extend(
                f"^{scope}/{name[1:]}" if name.startswith("^") else f"{scope}/{name}" for name in node.input
            )


def _plain(tensor: str) -> str:
    """The name of a tensor as a NodeDef has it: without :0."""
    return tensor.removesuffix(":0")


def _update(graph: Graph, operations: list[Any], handles: list[Any], gradient: Any) -> _Update:
    import tensorflow as tf

    definition = tf.compat.v1.GraphDef()
    # A resource that is used for the first time gets a placeholder, which is no part of the update.
    captures = {internal.op.name for _, internal in graph.captures}
    operations = [op for op in operations if op.name not in captures]
    inside = {op.name for op in operations}
    captured = {id(outside): internal.name for outside, internal in graph.captures}
    numbers = {
        captured[id(handle)]: number for number, handle in enumerate(handles) if id(handle) in captured
    }
    own: dict[int, str] = {}
    shared: dict[str, Any] = {gradient.name: gradient}
    for op in operations:
        node = definition.node.add()
        node.CopyFrom(op.node_def)
        if any(control.name not in inside for control in op.control_inputs) or "_class" in node.attr:
            raise ValueError("An update that waits for ops outside of it is not copied")
        for tensor in op.inputs:
            if tensor.op.name in inside:
                continue
            if tensor.name in numbers:
                own[numbers[tensor.name]] = tensor.name
            elif tensor.dtype == tf.resource and tensor.name not in shared and _is_large(tensor):
                raise ValueError("A resource of its own that is no slot is not copied")
            else:
                shared[tensor.name] = tensor
    return _Update(definition, gradient.name, own, shared)


def _is_large(handle: Any) -> bool:
    """Whether a resource may be one variable's: what all share is a number, such as the learning rate."""
    return any(shape for shape in shapes_in_resource(handle))
