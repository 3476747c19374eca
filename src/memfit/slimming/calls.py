"""Every call of a layer in a functional model, with the shapes it takes and gives: nothing is computed."""

from dataclasses import dataclass
from typing import Any

import keras

from memfit.compat.keras_layers import functional_of, input_structure, run_through


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a layer or an operation.

    Attributes:
        operation: The layer, or one of Keras's operations.
        inputs: The symbolic tensors that it takes, in a row.
        outputs: Those it gives.
    """

    operation: Any
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]

    @property
    def kind(self) -> str:
        """The name of the operation's class."""
        return type(self.operation).__name__


@dataclass(frozen=True, eq=False)
class Calls:
    """The calls of a model in order, those of nested models in their place.

    Attributes:
        inputs: The model's symbolic inputs.
        outputs: Its outputs.
        each: The calls.
    """

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    each: tuple[Call, ...]

    @property
    def layers(self) -> list[Any]:
        """The layers that are called, each once."""
        operations = {id(call.operation): call.operation for call in self.each}
        return [each for each in operations.values() if isinstance(each, keras.layers.Layer)]


def calls_of(model: Any) -> Calls | None:
    """Returns the calls of a functional or sequential model; None for any other."""
    graph = functional_of(model)
    if graph is None:
        return None
    calls: list[Call] = []

    def visit(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outputs = operation.compute_output_spec(*args, **kwargs)
        tensors = _tensors((args, kwargs))
        # A layer that changes nothing, as Dropout, may give the very tensor that it got.
        outputs = keras.tree.map_structure(lambda each: keras.KerasTensor(each.shape, each.dtype), outputs)
        calls.append(Call(operation, tensors, _tensors(outputs)))
        return outputs

    structure = input_structure(graph)
    outputs = run_through(model, graph.inputs if structure is None else structure, visit)
    return Calls(tuple(graph.inputs), _tensors(outputs), tuple(calls))


def leaf_layers(model: Any) -> list[Any]:
    """The layers with weights in the order they are called, those of nested models in their place, each once."""
    calls = calls_of(model)
    layers = model.layers if calls is None else calls.layers
    return [layer for layer in layers if layer.weights]


def _tensors(structure: Any) -> tuple[Any, ...]:
    return tuple(each for each in keras.tree.flatten(structure) if isinstance(each, keras.KerasTensor))
