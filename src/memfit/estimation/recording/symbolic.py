"""A model's inputs and outputs as symbolic tensors: those it was made of, or those that follow from its build."""

from collections.abc import Mapping
from typing import Any

from memfit.compat.keras_globals import names_left_alone
from memfit.compat.keras_layers import all_layers, input_structure
from memfit.errors import CannotTell, in_one_line
from memfit.estimation.recording.sending import packed, unpacked

EXAMPLE = (
    "Pass an example as data=(x, y), or the tf.data.Dataset that fit() gets; only shapes and types are read"
)


def inputs_of(model: Any) -> Any:
    """Returns a model's symbolic inputs in the structure that its `call` takes.

    A subclassed model has none, but Keras keeps the shapes it was built with, by `build` or by its first call.

    Raises:
        CannotTell: If the model does not say them.
    """
    if getattr(model, "inputs", None):
        structure = input_structure(model)
        structure = model.inputs if structure is None else structure
    else:
        structure = _with_tensors((model.get_build_config() or {}).get("input_shape"))
    if structure is None:
        raise CannotTell(
            "The shapes of the inputs must be known, and this model does not say them",
            received=type(model).__name__,
            remedy=EXAMPLE,
        )
    if isinstance(structure, tuple | list) and len(structure) == 1:
        return structure[0]
    return structure


def outputs_of(model: Any) -> Any:
    """Returns a model's symbolic outputs in their own structure.

    Raises:
        CannotTell: If they do not follow from its inputs.
    """
    if not getattr(model, "inputs", None):
        return _inferred_outputs(model)
    try:
        return model.output
    except AttributeError:  # a Sequential model has a list only
        return model.outputs[0] if len(model.outputs) == 1 else model.outputs


def _inferred_outputs(model: Any) -> Any:
    x = inputs_of(model)
    try:
        # Layers that are not built would be built here, and the caller's model is only read.
        if all(layer.built for layer in all_layers(model)):
            return model.compute_output_spec(x)
        with names_left_alone():
            return unpacked(packed(model))[0].compute_output_spec(x)
    except Exception as error:  # whatever a user's `call` raises on symbolic tensors
        raise CannotTell(
            "The shapes of the targets must be known, and this model's outputs do not follow from the shapes it "
            f"was built with ({in_one_line(error)})",
            received=type(model).__name__,
            remedy=EXAMPLE,
        ) from error


def _with_tensors(shapes: Any) -> Any:
    """Puts a symbolic tensor, of any number of samples, in the place of every shape in a structure of shapes."""
    import keras

    if isinstance(shapes, Mapping):
        return {name: _with_tensors(shape) for name, shape in shapes.items()}
    if not isinstance(shapes, tuple | list):
        return None
    if all(size is None or isinstance(size, int) for size in shapes):
        return keras.KerasTensor((None, *shapes[1:]), keras.config.floatx())
    return type(shapes)(_with_tensors(shape) for shape in shapes)
