"""Keras's step as a function of a batch, as it is recorded."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

from memfit.compat.keras_layers import all_layers
from memfit.compat.tf_runtime import optimise_once
from memfit.estimation.recording.failures import step_failures
from memfit.estimation.recording.specs import Batch, Spec, mapped, outputs_of

# A step that is traced in less is traced for three batch sizes instead of two; one of so many layers, which takes
# too long, is traced once for all.
_SECONDS_PER_TRACE = 1.2
_MANY_LAYERS = 120
_LOOPS = frozenset({"While", "StatelessWhile"})


def batch_of(spec: Spec, size: int) -> Batch:
    """Returns a batch that TensorFlow copies into its own memory.

    It takes over an array without a copy where that happens to lie at a multiple of 64 bytes. Small arrays do
    so now and then; those of a large batch, which `malloc` maps page by page behind a head of 16 bytes, do not.
    """
    import numpy as np

    def placed(array: Any) -> Any:
        if array.dtype.hasobject or array.dtype.kind == "U":
            return array
        room = np.empty(array.nbytes + 64, np.uint8)
        begin = (16 - room.ctypes.data) % 64
        copy = room[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
        copy[...] = array
        return copy

    return mapped(placed, spec.batch(size))


def build(model: Any, spec: Spec, batch: int, phase: str) -> None:
    """Makes the variables that Keras would make in the first step, so that the step is traced once, not twice."""
    x, y, weight = _three(spec.batch(batch))
    if not _has_call(model):
        return  # the step calls parts of it, as that of a GAN does, and makes what they need
    if not model.built:
        # A step of one's own may call the model with something else than the data.
        with contextlib.suppress(Exception) if _has_own_step(model) else step_failures():
            model(x, training=False)
    if phase == "predict":
        return
    outputs = getattr(model, "outputs", None)
    # A custom step may have no use for these calls or fail in them; then the step makes its variables itself.
    with contextlib.suppress(Exception):
        predicted = spec.like(outputs_of(model), batch) if outputs else model(x, training=False)
        model.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=weight)
        model.compute_metrics(x, y, predicted, sample_weight=weight)


def _has_own_step(model: Any) -> bool:
    import keras

    return type(model).train_step is not keras.Model.train_step


def _has_call(model: Any) -> bool:
    import keras

    return type(model).call is not keras.Model.call


def _three(data: Any) -> tuple[Any, Any, Any]:
    data = data if isinstance(data, tuple) else (data,)
    x, y, weight = (*data, None, None)[:3]
    return x, y, weight


def body_of(model: Any, phase: str) -> Callable[[Batch], Any]:
    """Returns what Keras does in a step of a phase."""
    bodies = {"train": model.train_step, "validate": model.test_step, "predict": model.predict_step}
    return step_failures()(bodies[phase])


def step_of(model: Any, spec: Spec, phase: str, largest: int) -> tuple[Callable[[Batch], Any], int, bool]:
    """Returns Keras's step as a function of a batch, how many batch sizes to trace it for, and whether it loops.

    TensorFlow makes other ops of a step whose batch size it knows, as it does in `train_on_batch`, and runs them in
    another order. So a step is traced for each batch size where that is quick; with 0, one trace does for all.
    """
    import keras
    import tensorflow as tf

    body = body_of(model, phase)
    if model.run_eagerly:
        return lambda data: body(mapped(tf.convert_to_tensor, data)), 0, False
    plain = tf.autograph.experimental.do_not_convert(lambda data: body(data))  # as Keras has it
    if model.jit_compile:
        return tf.function(plain, reduce_retracing=True, jit_compile=True), 1, False
    known = tf.function(plain, reduce_retracing=False)
    layers = [layer for layer in all_layers(model) if layer is not model]
    # A loop over time keeps more where it does not know the batch: 72 instead of 66 MiB for a bidirectional LSTM.
    if any(isinstance(layer, keras.layers.RNN | keras.layers.Bidirectional) for layer in layers):
        return known, 2, True
    if len(layers) < _MANY_LAYERS:
        begin = time.monotonic()
        graph = known.get_concrete_function(batch_of(spec, largest)).graph
        return known, 3 if time.monotonic() - begin < _SECONDS_PER_TRACE else 2, _loops(graph)
    function = tf.function(plain, reduce_retracing=True)
    if _loops(function.get_concrete_function(spec.any_batch()).graph):
        return known, 2, True
    optimise_once()
    return function, 0, False


def _loops(graph: Any) -> bool:
    return any(op.type in _LOOPS for op in graph.get_operations())


def share_slots(optimizer: Any) -> None:
    """Puts the optimizer's state where Keras's first step finds it.

    Keras makes the slots inside the first step's function. There TensorFlow folds equal initial values into one, so
    slots of one shape share a buffer of zeros until their first update: the first step's peak is lower for it, and
    the slots end up in whatever gaps that step left.
    """
    import tensorflow as tf

    zeros: dict[Any, Any] = {}
    for variable in optimizer.variables:
        value = variable.value
        if value.dtype.is_floating and len(value.shape):
            key = (tuple(value.shape), value.dtype)
            if key not in zeros:
                zeros[key] = tf.zeros(*key)
            value.assign(zeros[key])
