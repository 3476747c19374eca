"""Recording the allocations of a few small steps, in a process of its own in a generous arena."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from memfit.estimation.private_apis import know_own_variables
from memfit.estimation.sending import unpacked
from memfit.estimation.specs import Batch, Spec, outputs_of
from memfit.estimation.trace import Event, mark, traced

PHASES = ("train", "validate", "predict")
Prepare = Callable[[Any], Any]
# Steps recorded at the largest batch, whose orders are replayed. Threads run ops in another order in every step: a
# small model, whose few large ops may or may not run at the same time, peaks up to 20% higher in one step of thirty
# than in most, and has quick steps; a large one averages that out, and is recorded as often as the time allows.
_STEPS_IN_ORDER = range(6, 31)
_SECONDS_IN_ORDER = 2.0
# Steps at the other batches, which only give sizes.
_STEPS_FOR_SIZES = range(2, 3)
_LOOPS = frozenset({"While", "StatelessWhile"})


@dataclass(frozen=True)
class Variable:
    """A variable that is there before the first step: its owner's name, its kind and its bytes."""

    name: str
    kind: str
    bytes: int
    random: bool


@dataclass(frozen=True)
class Session:
    """Steps recorded in a row at one batch size, each as its events in order."""

    batch: int
    steps: tuple[tuple[Event, ...], ...]
    measured_peaks: tuple[int, ...]


@dataclass(frozen=True)
class Recording:
    """All that one isolated process saw.

    Attributes:
        phase: "train", "validate" or "predict".
        variables: What is there before the first step.
        start: Events of making the optimizer's state.
        sessions: Smallest batch first; the last one's order is what gets replayed.
        layers: Names of the model's layers, nested ones included.
        shapes: Shapes of the trainable variables, as text: a gradient has one of them.
        seconds: Time per op name in a step of the largest batch.
        optimizer_bytes: The optimizer's variables.
    """

    phase: str
    variables: tuple[Variable, ...]
    start: tuple[Event, ...]
    sessions: tuple[Session, ...]
    layers: tuple[str, ...]
    shapes: frozenset[str]
    seconds: dict[str, float]
    optimizer_bytes: int


def record(payload: bytes, batches: tuple[int, ...], phase: str) -> Recording:
    """Records a phase of the packed (model, spec, prepare) at some batch sizes; runs in the isolated process."""

    model, (spec, prepare) = unpacked(payload)
    know_own_variables(model.optimizer)
    if prepare is not None:
        prepare(model)
    _build(model, spec, batches[0], phase)
    variables = tuple(_variables(model))
    fresh = phase == "train" and not model.optimizer.built
    if fresh:
        model.optimizer.build(model.trainable_variables)
    step = _step(model, spec, phase)
    for batch in batches:
        step(spec.batch(batch))  # TensorFlow optimises, and XLA compiles, in the first call
    with traced() as start:
        if fresh:
            _share_slots(model.optimizer)
        mark()
    largest = _session(step, spec, batches[-1], _STEPS_IN_ORDER)
    smaller = [_session(step, spec, batch, _STEPS_FOR_SIZES)[0] for batch in batches[-2::-1]]
    return Recording(
        phase=phase,
        variables=variables,
        start=tuple(start.steps[0]),
        sessions=(*smaller[::-1], largest[0]),
        layers=tuple(layer.name for layer in _layers(model)),
        shapes=frozenset(_shape_text(v.shape) for v in model.trainable_variables),
        seconds=largest[1],
        optimizer_bytes=sum(_bytes(v) for v in model.optimizer.variables) if phase == "train" else 0,
    )


def _build(model: Any, spec: Spec, batch: int, phase: str) -> None:
    """Makes the variables that Keras would make in the first step, so that the step is traced once, not twice."""
    x, y, weight = _three(spec.batch(batch))
    if not model.built:
        model(x, training=False)
    if phase == "predict":
        return
    outputs = getattr(model, "outputs", None)
    # A custom step may have no use for these calls or fail in them; then the step makes its variables itself.
    with contextlib.suppress(Exception):
        predicted = spec.like(outputs_of(model), batch) if outputs else model(x, training=False)
        model.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=weight)
        model.compute_metrics(x, y, predicted, sample_weight=weight)


def _three(data: Any) -> tuple[Any, Any, Any]:
    data = data if isinstance(data, tuple) else (data,)
    x, y, weight = (*data, None, None)[:3]
    return x, y, weight


def _step(model: Any, spec: Spec, phase: str) -> Callable[[Batch], Any]:
    """Returns Keras's step as one function of a batch of any size, so that it is traced once."""
    import tensorflow as tf

    own = "make_train_function" in vars(model)  # a plan may bring its own function instead of a step
    if phase == "train" and own:
        model.make_train_function()
        return lambda batch: model.train_function(iter([batch]))
    body = {"train": model.train_step, "validate": model.test_step, "predict": model.predict_step}[phase]
    plain = tf.autograph.experimental.do_not_convert(lambda data: body(data))  # as Keras has it
    function = tf.function(plain, reduce_retracing=True, jit_compile=model.jit_compile)
    if model.jit_compile:
        return function
    traced_once = function.get_concrete_function(spec.any_batch())
    if not any(op.type in _LOOPS for op in traced_once.graph.get_operations()):
        return function
    # A loop over time keeps more where it does not know the batch (72 instead of 66 MiB for a bidirectional LSTM),
    # so it is traced for each batch as train_on_batch does; such steps are small.
    return tf.function(plain, reduce_retracing=False)


def _session(
    step: Callable[[Batch], Any], spec: Spec, batch: int, count: range
) -> tuple[Session, dict[str, float]]:
    import tensorflow as tf

    data = spec.batch(batch)
    peaks: list[int] = []
    with traced() as trace:
        begin = time.monotonic()
        while len(peaks) < count.start or (
            len(peaks) < count.stop - 1 and time.monotonic() - begin < _SECONDS_IN_ORDER
        ):
            tf.config.experimental.reset_memory_stats("CPU:0")
            step(data)
            peaks.append(int(tf.config.experimental.get_memory_info("CPU:0")["peak"]))
            mark()
    seconds = {op: total / len(peaks) for op, total in trace.seconds.items()}
    return Session(batch, tuple(map(tuple, trace.steps)), tuple(peaks)), seconds


def _share_slots(optimizer: Any) -> None:
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


def _layers(model: Any) -> list[Any]:
    return [layer for layer in model._flatten_layers() if layer is not model]


def _variables(model: Any) -> list[Variable]:
    found = [Variable(v.path, "weights", _bytes(v), len(v.shape) > 1) for v in model.variables]
    optimizer = model.optimizer
    if optimizer is not None and optimizer.built:
        found += [Variable(v.path, "optimizer state", _bytes(v), False) for v in optimizer.variables]
    return found


def _bytes(variable: Any) -> int:
    import tensorflow as tf

    elements = 1
    for size in variable.shape:
        elements *= int(size)
    return elements * int(tf.as_dtype(variable.dtype).size)


def _shape_text(shape: Any) -> str:
    return "[" + ",".join(str(int(size)) for size in shape) + "]"
