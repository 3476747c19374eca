"""Recording the allocations of a few small steps, in a process of its own in a generous arena."""

import atexit
import contextlib
import gc
import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from memfit.estimation.compiled import bytes_per_sample, compiled_for
from memfit.estimation.private_apis import know_own_variables, optimise_once
from memfit.estimation.recorded import Recording, Step, Variable
from memfit.estimation.sending import unpacked
from memfit.estimation.specs import Batch, Spec, mapped, outputs_of
from memfit.estimation.trace import Event, mark, traced
from memfit.estimation.updates import copy_updates

PHASES = ("train", "validate", "predict")
Prepare = Callable[[Any], Any]
# Threads run ops in another order in every step: a small model, whose few large ops may or may not run at the same
# time, peaks up to 20% higher in one step of thirty than in most, and has quick steps; a large one averages that
# out, and is recorded as often as the time allows, but never less often than the peak's definition needs.
_STEPS = range(5, 31)
# Seconds for them: what tracing leaves of the 15 that an estimate may take, some of which TensorFlow's start takes.
_SECONDS = (1.5, 4.0)
_SECONDS_BEFORE = 8.0
# A step that is traced in less is traced for each batch size.
_SECONDS_PER_TRACE = 1.2
# What TensorFlow names a constant it has computed ahead.
_FOLDED = "__cf__"
# Smaller arrays may lie where TensorFlow needs no copy of them, at any batch size.
_LARGE_ARRAY = 2**16
_LOOPS = frozenset({"While", "StatelessWhile"})


def record(payload: bytes, largest: int, target: int | str, phase: str) -> Recording:
    """Records a phase of the packed (model, spec, prepare); runs in the isolated process.

    Args:
        payload: What `packed` made.
        largest: The largest batch size to record.
        target: The batch size asked about, which XLA compiles for; why not, where that was seen to fail.
        phase: One of PHASES.
    """
    # Python would take a graph of ten thousands of ops apart object by object, with somebody waiting for the end.
    atexit.register(os._exit, 0)
    gc.disable()  # it would look through the same ten thousands of objects again and again, a second in all
    begin = time.monotonic()
    model, (spec, prepare) = unpacked(payload)
    know_own_variables(model.optimizer)
    if prepare is not None:
        entered = time.monotonic()
        prepare(model)
        begin += time.monotonic() - entered  # it may wait to be told what to prepare
    batches = ladder(largest)
    _build(model, spec, batches[0], phase)
    variables = tuple(_variables(model))
    fresh = phase == "train" and not model.optimizer.built
    if fresh:
        model.optimizer.build(model.trainable_variables)
    if phase == "train":
        copy_updates(model.optimizer)
    step, anew, loops = _step(model, spec, phase)
    if anew:
        # Three show a line and whether it is one. What XLA asks for at the batch in question it says itself.
        batches = batches[-1:] if model.jit_compile else batches[-anew:]
    known = batches if anew and not model.jit_compile else ()
    if not known:
        step(_batch(spec, batches[0]))  # TensorFlow optimises, and XLA compiles, in the first call
    with traced() as first:
        for batch in known:
            step(_batch(spec, batch))
            mark()
    if loops:
        _settle(step, _batch(spec, batches[-1]))
    with traced() as trace:
        seconds = min(max(_SECONDS_BEFORE - (time.monotonic() - begin), _SECONDS[0]), _SECONDS[1])
        smaller = _smaller(step, spec, batches, seconds)
        if fresh:
            _share_slots(model.optimizer)
        mark()
        largest = batches[len(smaller)]
        count = _in_a_row(step, _batch(spec, largest), seconds)
    steps = tuple(Step(largest, _fed(events, spec, largest)) for events in trace.steps[-count:])
    compiled = (
        (compiled_for(_body(model, phase), spec, steps[-1].events, largest, target),)
        if model.jit_compile
        else ()
    )
    return Recording(
        phase=phase,
        variables=variables,
        folded=tuple(Step(batch, _folded(events)) for batch, events in zip(known, first.steps, strict=True)),
        start=trace.steps[len(smaller)],
        smaller=tuple(
            Step(batch, _fed(events, spec, batch))
            for batch, events in zip(smaller, trace.steps, strict=False)
        ),
        steps=steps,
        compiled=compiled,
        layers=tuple(layer.name for layer in _layers(model)),
        shapes=frozenset(_shape_text(v.shape) for v in model.trainable_variables),
        seconds=_mean(trace.seconds[-count:]),
    )


def _settle(step: Callable[[Batch], Any], data: Batch) -> None:
    """Runs steps before those that are recorded, where ops run again and again in a loop over time.

    TensorFlow takes every op for one that takes long, and hands it to another thread, until it has timed it a
    hundred times; then short ops run at once, and the order is another. While it is traced it times none.
    """
    for _ in range(_STEPS.start - 1):
        step(data)


def _folded(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """Returns the constants among the events of a step's first call that stay when it has ended."""
    alive: dict[int, Event] = {}
    for event in events:
        if event.freed:
            alive.pop(event.address, None)
        else:
            alive[event.address] = event
    return tuple(event for event in alive.values() if _FOLDED in event.op)


def _fed(events: tuple[Event, ...], spec: Spec, batch: int) -> tuple[Event, ...]:
    """Returns a step's events with those of its batch, where TensorFlow took an array over without a copy.

    It was seen to, in spite of `_batch`, and does not with the arrays of a large batch.
    """
    seen = Counter(event.requested for event in events if not event.freed and not event.op)
    wanted = Counter(size * batch for size in bytes_per_sample(spec) if size * batch >= _LARGE_ARRAY)
    born = tuple(
        Event(-1 - number, size, size, "", "", "", freed=False)
        for number, size in enumerate((wanted - seen).elements())
    )
    return (*born, *events, *(event._replace(freed=True) for event in born))


def ladder(largest: int) -> tuple[int, ...]:
    """Returns the batch sizes that may be recorded, each twice the one before; not 1 unless it has to be.

    TensorFlow has ways of its own for dimensions of 1.
    """
    found = [largest]
    while found[0] >= 4:
        found.insert(0, found[0] // 2)
    return tuple(found if len(found) > 1 else [1, 2])


def _batch(spec: Spec, size: int) -> Batch:
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


def _smaller(
    step: Callable[[Batch], Any], spec: Spec, batches: tuple[int, ...], seconds: float
) -> tuple[int, ...]:
    """Runs a step of each smaller batch, and returns those below the largest that leaves time for several."""
    for position, batch in enumerate(batches[:-1], 1):
        data = _batch(spec, batch)
        begin = time.monotonic()
        step(data)
        mark()
        # Twice the samples take at most twice the time, and the next batch but one four times as long.
        if _STEPS.start * 4 * (time.monotonic() - begin) > seconds:
            return batches[:position]
    return batches[:-1]


def _in_a_row(step: Callable[[Batch], Any], data: Batch, seconds: float) -> int:
    """Runs steps as often as the time allows, and returns how often that was."""
    begin = time.monotonic()
    count = 0
    while count < _STEPS.start or (count < _STEPS.stop - 1 and time.monotonic() - begin < seconds):
        step(data)
        mark()
        count += 1
    return count


def _mean(steps: list[dict[str, float]]) -> dict[str, float]:
    return {op: sum(step.get(op, 0.0) for step in steps) / len(steps) for op in steps[-1]}


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


def _body(model: Any, phase: str) -> Callable[[Batch], Any]:
    bodies = {"train": model.train_step, "validate": model.test_step, "predict": model.predict_step}
    return bodies[phase]


def _step(model: Any, spec: Spec, phase: str) -> tuple[Callable[[Batch], Any], int, bool]:
    """Returns Keras's step as a function of a batch, how many batch sizes to trace it for, and whether it loops.

    TensorFlow makes other ops of a step whose batch size it knows, as it does in `train_on_batch`, and runs them in
    another order. So a step is traced for each batch size where that is quick; with 0, one trace does for all.
    """
    import tensorflow as tf

    body = _body(model, phase)
    plain = tf.autograph.experimental.do_not_convert(lambda data: body(data))  # as Keras has it
    if model.jit_compile:
        return tf.function(plain, reduce_retracing=True, jit_compile=True), 1, False
    function = tf.function(plain, reduce_retracing=True)
    begin = time.monotonic()
    traced_once = function.get_concrete_function(spec.any_batch())
    seconds = time.monotonic() - begin
    loops = any(op.type in _LOOPS for op in traced_once.graph.get_operations())
    if seconds < _SECONDS_PER_TRACE:
        return tf.function(plain, reduce_retracing=False), 3, loops
    if not loops:
        optimise_once()
        return function, 0, False
    # A loop over time keeps more where it does not know the batch: 72 instead of 66 MiB for a bidirectional LSTM.
    return tf.function(plain, reduce_retracing=False), 2, loops


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
