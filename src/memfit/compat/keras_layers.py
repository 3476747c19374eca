"""Keras's private parts of layers: what is inside them, their masks, added losses and random seeds.

Checked with Keras 3.12.0 and 3.15.1.
"""

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import Any

from memfit.compat.attributes import overridden
from memfit.compat.tf_graphs import compiles_with_xla

# Where layers, initializers and seed generators keep their seeds.
SEED_ATTRIBUTES = ("seed", "_init_seed", "_initial_seed")
# Where Keras knows objects by their numbers in this process.
NUMBER_ATTRIBUTES = ("_trainable_variables_indices", "_nodes")


def is_keras_object(obj: Any) -> bool:
    """Whether `obj` is one of the objects Keras saves: a layer, model, optimizer, metric or loss."""
    from keras.src.saving.keras_saveable import KerasSaveable

    return isinstance(obj, KerasSaveable)


def is_tracked_container(obj: Any) -> bool:
    """Whether `obj` is a list, dict or set that Keras watches for layers and variables."""
    from keras.src.utils.tracking import TrackedDict, TrackedList, TrackedSet

    return isinstance(obj, TrackedDict | TrackedList | TrackedSet)


def added_losses(model: Any) -> list[tuple[Any, int, Any]]:
    """Lists the losses that layers added in the call just made: the layer, the place in its list, the tensor."""
    return [(layer, place, loss) for layer in all_layers(model) for place, loss in enumerate(_losses(layer))]


def set_added_loss(layer: Any, place: int, loss: Any) -> None:
    """Puts another tensor in the place of a loss that a layer added."""
    _losses(layer)[place] = loss


def forget_losses(model: Any) -> None:
    """Drops the losses of a call, which would otherwise keep the tensors of its graph alive."""
    model._clear_losses()


def all_layers(model: Any) -> list[Any]:
    """The model and every layer in it, however deeply nested, each once.

    Of what is no layer itself but has some, as a loss function, all layers in those.
    """
    import keras

    roots = [model] if isinstance(model, keras.layers.Layer) else model.layers
    layers = [layer for root in roots for layer in root._flatten_layers()]
    return list({id(layer): layer for layer in layers}.values())


@contextmanager
def layers_called() -> Iterator[list[Any]]:
    """Yields a list that gets every layer that this thread calls meanwhile, each once."""
    import keras

    own, thread = keras.layers.Layer.__call__, threading.get_ident()
    called: list[Any] = []

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == thread and not any(layer is other for other in called):
            called.append(layer)
        return own(layer, *args, **kwargs)

    keras.layers.Layer.__call__ = functools.wraps(own)(call)
    try:
        yield called
    finally:
        keras.layers.Layer.__call__ = own


def layers_inside(layer: Any) -> list[Any]:
    """The layers directly inside of a layer or a model."""
    return list(layer._layers)


@contextmanager
def statistics_left_alone() -> Iterator[None]:
    """Lets BatchNormalization layers that are called meanwhile normalise as in inference."""
    import keras

    own = keras.layers.BatchNormalization.call

    def call(layer: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        return own(layer, inputs, training=False, mask=mask)

    keras.layers.BatchNormalization.call = functools.wraps(own)(call)
    try:
        yield
    finally:
        keras.layers.BatchNormalization.call = own


def moments_replaced(
    layer: Any, moments: Callable[[Any, Any, Sequence[int]], Any]
) -> AbstractContextManager[None]:
    """Lets a BatchNormalization layer compute its moments by `moments(inputs, mask, axes)`."""
    return overridden(layer, _moments=lambda inputs, mask: moments(inputs, mask, list(layer._reduction_axes)))


def input_structure(model: Any) -> Any:
    """The inputs of a functional model as its `call` takes them, nested as they are; None where it has none."""
    return getattr(model, "_inputs_struct", None)


def functional_of(layer: Any) -> Any:
    """The graph of layers that a functional or sequential model is; None for any other layer."""
    import keras
    from keras.src.models.functional import Functional

    if isinstance(layer, keras.Sequential) and type(layer).call is keras.Sequential.call:
        return layer._functional
    return layer if isinstance(layer, Functional) and type(layer).call is Functional.call else None


def output_structure(model: Any) -> Any:
    """The outputs of a functional or sequential model, nested as they are."""
    return functional_of(model)._outputs_struct


def run_through(
    model: Any,
    inputs: Any,
    visit: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any],
    *,
    into_nested: bool = True,
) -> Any:
    """Goes through a functional model and those nested in it, whatever stands for its tensors.

    Args:
        inputs: What stands for the model's inputs, in their structure.
        visit: Gives what stands for the outputs of a layer or an operation that is called with such arguments.
        into_nested: Whether to visit the layers of nested models, rather than a nested model as a layer.
    """

    def call(operation: Any) -> Any:
        if into_nested and functional_of(operation) is not None:
            return lambda *args, **_: run_through(operation, args[0], visit)
        return lambda *args, **kwargs: visit(operation, args, kwargs)

    return functional_of(model)._run_through_graph(inputs, operation_fn=call)


def call_to_infer(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a layer or an operation as a model does that predicts."""
    if _takes_training(operation):
        kwargs = {**kwargs, "training": False}
    return operation(*args, **kwargs)


def operation_name(operation: Any) -> str:
    """The name of one of Keras's operations on tensors, such as "Add"; empty for layers."""
    kind = type(operation)
    return kind.__name__ if kind.__module__.startswith("keras.src.ops.") else ""


def mask_of(tensor: Any) -> Any:
    """The Keras mask that a tensor carries, or None."""
    from keras.src.backend import get_keras_mask

    return get_keras_mask(tensor)


def copy_mask(source: Any, target: Any) -> None:
    """Gives a tensor the mask that Keras attached to another."""
    from keras.src.backend import set_keras_mask

    mask = mask_of(source)
    if mask is not None:
        set_keras_mask(target, mask)


def logits_of(tensor: Any) -> Any:
    """The tensor from whose softmax or sigmoid Keras knows another to come, and takes for a loss; or None."""
    return getattr(tensor, "_keras_logits", None)


def set_logits(tensor: Any, logits: Any) -> None:
    """Lets Keras know from whose softmax or sigmoid a tensor comes."""
    tensor._keras_logits = logits


def own_seed_generators(model: Any) -> list[Any]:
    """All generators that a model's layers draw from, each once."""
    generators = [generator for layer in all_layers(model) for generator in layer._seed_generators]
    return list({id(generator): generator for generator in generators}.values())


def layer_states(model: Any) -> list[Any]:
    """The variables that layers keep beside weights, such as statistics and seeds; frozen weights are not."""
    states = [variable for layer in all_layers(model) for variable in layer._non_trainable_variables]
    return states + [generator.state for generator in own_seed_generators(model)]


@contextmanager
def seeded(layer: Any, seed: Any) -> Iterator[None]:
    """Lets all random draws of a Keras layer come from `seed`, a tensor, while its call is traced.

    Keras layers draw from `SeedGenerator`s, and `draw_seed` takes nothing else, so the generators' own `next` is
    replaced for the time being.
    """
    import tensorflow as tf

    generators = own_seed_generators(layer)
    draws = 0

    def draw(ordered: bool = True) -> Any:
        nonlocal draws
        draws += 1
        return tf.bitcast(tf.random.experimental.stateless_fold_in(tf.cast(seed, tf.int32), draws), tf.uint32)

    for generator in generators:
        generator.next = draw
    try:
        yield
    finally:
        for generator in generators:
            generator.__dict__.pop("next", None)


def forward(model: Any, x: Any, *, training: bool) -> Any:
    """Calls the model as Keras's own steps do: `training` is passed only to a `call` that takes it."""
    with _recurrent_weights_read_once(model):
        return model(x, training=training) if _takes_training(model) else model(x)


def output_layers(model: Any) -> list[Any]:
    """The layers whose outputs are those of a functional or sequential model; none for a subclassed one."""
    outputs = getattr(model, "outputs", None)
    return [output._keras_history.operation for output in outputs] if outputs else []


def why_not_xla(model: Any) -> str | None:
    """Says why Keras would not have XLA compile the model's step on a GPU, or None where it would."""
    from keras.src.trainers.trainer import model_supports_jit

    for layer in all_layers(model):
        if not layer.supports_jit:
            return f"{layer.name} forbids it"
        if _runs_on_cudnn(layer):
            return f"{layer.name} runs on cuDNN there; use_cudnn=False would let XLA compile it"
    return None if model_supports_jit(model) else "it is switched off"


def loops(model: Any) -> list[str]:
    """Names the recurrent layers that loop over time steps, rather than run on cuDNN or step by step."""
    import keras

    return [
        layer.name
        for layer in all_layers(model)
        if isinstance(layer, keras.layers.RNN) and not layer.unroll and not _runs_on_cudnn(layer)
    ]


def _takes_training(layer: Any) -> bool:
    return bool(getattr(layer, "_call_has_training_arg", False))


def _losses(layer: Any) -> list[Any]:
    """The losses that a layer added itself in its last call."""
    losses: list[Any] = layer._losses
    return losses


@contextmanager
def _recurrent_weights_read_once(model: Any) -> Iterator[None]:
    """Lets recurrent layers read their weights before their loop over time, where XLA compiles it.

    What a loop's body reads from a variable TensorFlow keeps for the backward pass, once for each time step. That
    is one buffer without XLA, but with it a copy each: 1 GiB a kernel for an LSTM of 512 units over 256 steps.
    """
    import keras
    import tensorflow as tf

    layers = [layer for layer in all_layers(model) if isinstance(layer, keras.layers.RNN)]
    variables = {id(weight): weight for layer in layers for weight in layer.cell.trainable_weights}
    if tf.executing_eagerly() or not compiles_with_xla(tf.compat.v1.get_default_graph()):
        variables = {}
    own = {key: variable._value for key, variable in variables.items()}
    try:
        for variable in variables.values():
            variable._value = tf.convert_to_tensor(variable._value)
        yield
    finally:
        for key, variable in variables.items():
            variable._value = own[key]


def _runs_on_cudnn(layer: Any) -> bool:
    """Whether a recurrent layer takes cuDNN's kernel on a GPU; without one here, Keras does not say so itself."""
    import keras

    if not isinstance(layer, keras.layers.LSTM | keras.layers.GRU) or layer.use_cudnn not in (True, "auto"):
        return False
    rnn = import_module("keras.src.backend.tensorflow.rnn")  # its package has a function of the same name
    cell = layer.cell
    facts = (cell.activation, cell.recurrent_activation, layer.unroll, cell.use_bias)
    if isinstance(layer, keras.layers.LSTM):
        return bool(rnn._do_lstm_arguments_support_cudnn(*facts))
    return bool(rnn._do_gru_arguments_support_cudnn(*facts, cell.reset_after))
