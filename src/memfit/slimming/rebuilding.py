"""Building a model again, layer by layer: some layers replaced, the weights of all others carried over."""

import inspect
from collections.abc import Callable
from typing import Any

import keras

from memfit.compat.keras_layers import functional_of, input_structure, run_through
from memfit.compat.keras_training import compile_arguments
from memfit.errors import MemfitError, in_one_line
from memfit.slimming.calls import leaf_layers

# Makes the layer that takes the place of another, not built; None for a copy of it.
Replace = Callable[[Any], Any]


class CannotSlim(MemfitError):
    """A variant cannot be made of a model; the message is the reason, as a half-sentence."""


class Rebuilt:
    """A model that was built again.

    Attributes:
        model: The new model, not compiled.
        pairs: Each layer of the original (nested models apart) with the one in its place.
    """

    def __init__(self, model: Any, pairs: list[tuple[Any, Any]]) -> None:
        self.model, self.pairs = model, pairs

    def carry_weights(self, skip: Callable[[Any], bool] = lambda layer: False) -> None:
        """Copies the weights of every layer but those that `skip` says yes to.

        Raises:
            CannotSlim: If a layer's weights have another shape than before.
        """
        for old, new in self.pairs:
            if not old.weights or skip(old):
                continue
            shapes = [tuple(weight.shape) for weight in new.weights]
            if shapes != [tuple(weight.shape) for weight in old.weights]:
                raise CannotSlim(f"the weights of {old.name} would have another shape")
            new.set_weights(old.get_weights())


def why_not_rebuild(model: Any) -> str | None:
    """Says why a model's layers cannot be replaced; None where they can."""
    if functional_of(model) is None:
        if isinstance(model, keras.Sequential):
            return "it is not built yet: give it an Input, or call it once"
        return f"{type(model).__name__} computes in its own call(), where no layer can be replaced"
    owners: dict[int, Any] = {}
    for layer in leaf_layers(model):
        for weight in layer.weights:
            other = owners.setdefault(id(weight), layer)
            if other is not layer:
                return f"{other.name} and {layer.name} share a weight"
    return None


def rebuild(model: Any, replace: Replace, resize: Callable[[Any], Any] | None = None) -> Rebuilt:
    """Builds a functional or sequential model again, with those that are nested in it.

    Args:
        model: The model, which is only read.
        replace: Gives the layer in the place of another, not built yet; None for a copy.
        resize: Gives the shape of an input from its symbolic tensor; None for its own.

    Raises:
        CannotSlim: If a layer cannot be copied, or does not take what the layers before it give.
    """
    made: dict[int, tuple[Any, Any]] = {}
    new = _rebuild(model, replace, made, lambda tensor: resize(tensor) if resize else tensor.shape)
    layers = [pair for pair in made.values() if isinstance(pair[0], keras.layers.Layer)]
    models = [pair for pair in layers if functional_of(pair[0]) is not None]
    pairs = [pair for pair in layers if functional_of(pair[0]) is None]
    # A model's flag is set for all of its layers, so that the layers' own come last. One that is right already is
    # left: setting it would set it for the weights under an adapter as well.
    for old, copy in [(model, new), *reversed(models), *pairs]:
        if copy.trainable != old.trainable:
            copy.trainable = old.trainable
    return Rebuilt(new, pairs)


def _rebuild(model: Any, replace: Replace, made: dict[int, tuple[Any, Any]], shape_of: Any) -> Any:
    graph = functional_of(model)
    structure = input_structure(graph)
    inputs = keras.tree.map_structure(
        lambda tensor: keras.Input(batch_shape=shape_of(tensor), dtype=tensor.dtype, name=tensor.name),
        graph.inputs if structure is None else structure,
    )

    def visit(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if id(operation) not in made:
            if functional_of(operation) is not None:
                new = _rebuild(operation, replace, made, _shapes_like(operation, args))
            else:
                new = replace(operation)
                new = copy_layer(operation) if new is None else new
            made[id(operation)] = operation, new
        new = made[id(operation)][1]
        try:
            return new(*args, **kwargs)
        except Exception as error:  # whatever a layer raises for shapes that it does not take
            raise CannotSlim(f"{operation.name} does not take it ({_say(error)})") from error

    outputs = run_through(model, inputs, visit, into_nested=False)
    if isinstance(model, keras.Sequential):
        return keras.Sequential([inputs, *(made[id(layer)][1] for layer in model.layers)], name=model.name)
    try:  # the same class, which may have a training step of its own
        return type(model)(inputs=inputs, outputs=outputs, name=model.name)
    except TypeError as error:
        raise CannotSlim(f"{type(model).__name__} has a constructor of its own") from error


def _shapes_like(nested: Any, args: tuple[Any, ...]) -> Callable[[Any], Any]:
    """The shapes that a nested model's inputs have from now on: those it is called with."""
    given = keras.tree.flatten(args)
    shapes = {id(tensor): new.shape for tensor, new in zip(functional_of(nested).inputs, given, strict=False)}
    return lambda tensor: shapes.get(id(tensor), tensor.shape)


def copy_layer(layer: Any, **changes: Any) -> Any:
    """Returns a layer like another, not built, with changes in its configuration.

    Raises:
        CannotSlim: If the layer does not say its configuration.
    """
    if isinstance(layer, keras.layers.Lambda):  # Keras would not read its code from a configuration
        return keras.layers.Lambda(
            layer.function, mask=layer.mask, arguments=layer.arguments, name=layer.name
        )
    try:
        return type(layer).from_config({**layer.get_config(), **changes})
    except Exception as error:  # whatever get_config and from_config of a user's layer raise
        raise CannotSlim(f"{layer.name} cannot be copied ({_say(error)})") from error


def _say(error: Exception) -> str:
    """What Keras says of an error, without where, and without the values it received."""
    return in_one_line(error).rpartition("call(). ")[2].partition(" Received")[0].rstrip(".")[:160]


def copy_model(model: Any) -> Any:
    """Returns a model of the same network with the same weights, not compiled; any kind of model.

    Raises:
        CannotSlim: If it cannot be copied.
    """
    if functional_of(model) is not None:
        rebuilt = rebuild(model, lambda layer: None)
        rebuilt.carry_weights()
        return rebuilt.model
    try:
        new = type(model).from_config(model.get_config())
        new.build_from_config(model.get_build_config())
        new.built = True  # its layers are: Keras has run it on shapes
        new.set_weights(model.get_weights())
    except Exception as error:  # whatever the user's own class raises
        reason = f"{type(model).__name__} cannot be copied ({_say(error)}): give it a get_config()"
        raise CannotSlim(reason) from error
    return new


def compile_like(new: Any, model: Any) -> Any:
    """Compiles a model as another was: the same optimizer with a state of its own, losses and metrics.

    Returns:
        The new model.
    """
    arguments = compile_arguments(model)
    optimizer = model.optimizer
    arguments["optimizer"] = type(optimizer).from_config(optimizer.get_config())
    for name in ("metrics", "weighted_metrics"):
        arguments[name] = keras.tree.map_structure(_fresh, arguments.get(name))
    accepted = inspect.signature(type(new).compile).parameters
    if not any(each.kind is each.VAR_KEYWORD for each in accepted.values()):
        arguments = {name: value for name, value in arguments.items() if name in accepted}
    new.compile(**arguments)
    return new


def _fresh(metric: Any) -> Any:
    """A metric of its own for a model: Keras's keep what they have seen."""
    if not isinstance(metric, keras.metrics.Metric):
        return metric
    return type(metric).from_config(metric.get_config())
