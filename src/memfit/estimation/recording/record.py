"""Recording the allocations of a few small steps, in a process of its own in a generous arena."""

import atexit
import gc
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from memfit.compat.keras_layers import all_layers
from memfit.compat.keras_optimizers import know_own_variables
from memfit.compat.tf_runtime import skip_idle_passes
from memfit.estimation.optimizers import optimizers_of
from memfit.estimation.recording.failures import op_failures
from memfit.estimation.recording.keras_step import batch_of, body_of, build, share_slots, step_of
from memfit.estimation.recording.recording import FOLDED, KEPT_EVENTS, STEPS, Recording, Step, Variable
from memfit.estimation.recording.sending import unpacked
from memfit.estimation.recording.specs import Batch, Spec
from memfit.estimation.recording.trace import Event, mark, traced
from memfit.estimation.recording.updates import copy_updates
from memfit.estimation.recording.xla import bytes_per_sample, compiled_for
from memfit.estimation.replay.dependencies import inputs_of

PHASES = ("train", "validate", "predict")
# Threads run ops in another order in every step: a small model, whose few large ops may or may not run at the same
# time, peaks up to 20% higher in one step of thirty than in most, and has quick steps; a large one averages that
# out, and is recorded as often as the time allows, but never less often than the peak's definition needs.
_STEPS = range(5, 31)
# Seconds for them: what tracing leaves of the 15 that an estimate may take, some of which TensorFlow's start takes,
# and as much again the profiler's end.
_SECONDS = (1.0, 4.0)
_SECONDS_BEFORE = 8.0
# Smaller arrays may lie where TensorFlow needs no copy of them, at any batch size.
_LARGE_ARRAY = 2**16


@op_failures()
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
    skip_idle_passes()
    optimizers = optimizers_of(model)
    for optimizer in optimizers:
        know_own_variables(optimizer)
    around = None
    if prepare is not None:
        entered = time.monotonic()
        around = prepare(model)
        begin += time.monotonic() - entered  # it may wait to be told what to prepare
    batches = ladder(largest)
    build(model, spec, batches[0], phase)
    fresh = [optimizer for optimizer in optimizers if not optimizer.built]
    if phase == "train":
        if fresh == [model.optimizer] == optimizers:
            model.optimizer.build(model.trainable_variables)
        for optimizer in optimizers:
            copy_updates(optimizer)
    traced_step, anew, loops = step_of(model, spec, phase, batches[-1])
    step = traced_step if around is None else around.run(traced_step)
    if anew:
        # Three show a line and whether it is one. What XLA asks for at the batch in question it says itself.
        batches = batches[-1:] if model.jit_compile else batches[-anew:]
    known = batches if anew and not model.jit_compile else ()
    traceable: Any = traced_step
    for batch in known:
        traceable.get_concrete_function(batch_of(spec, batch))  # it takes longer while the profiler is on
    if not known:
        step(batch_of(spec, batches[0]))  # TensorFlow optimises, and XLA compiles, in the first call
    with traced() as first:
        for batch in known:
            step(batch_of(spec, batch))
            mark()
        seconds = min(max(_SECONDS_BEFORE - (time.monotonic() - begin), _SECONDS[0]), _SECONDS[1])
        smaller = _smaller(step, spec, batches, seconds)
    largest = batches[len(smaller)]
    data = batch_of(spec, largest)
    if loops:
        _settle(step, data)
    most = KEPT_EVENTS // max(1, len(first.steps[-1])) if smaller else _STEPS.stop - 1
    with traced() as trace:
        mark()
        firsts, count = _in_a_row(step, data, seconds, most, fresh)
    # What comes before a first step is the making of the optimizer's state.
    first_steps = range(2, 2 * firsts + 1, 2)
    later_steps = range(len(trace.steps) - (count - firsts), len(trace.steps))
    recorded = [*first_steps, *later_steps]
    steps = tuple(Step(largest, _fed(trace.steps[number], spec, largest)) for number in recorded)
    compiled = (
        (compiled_for(body_of(model, phase), spec, steps[-1].events, largest, target),)
        if model.jit_compile
        else ()
    )
    kind = "weights" if prepare is None else "gradients"
    return Recording(
        phase=phase,
        variables=(
            *_variables(model, [optimizer for optimizer in optimizers if optimizer not in fresh]),
            *_others(traced_step, data, model, optimizers, kind),
            *([] if around is None else _placed(around.variables())),
        ),
        folded=tuple(Step(batch, _folded(events)) for batch, events in zip(known, first.steps, strict=False)),
        starts=tuple(trace.steps[number - 1] for number in first_steps),
        smaller=tuple(
            Step(batch, _fed(events, spec, batch))
            for batch, events in zip(smaller, first.steps[len(known) :], strict=True)
        ),
        steps=steps,
        compiled=compiled,
        layers=tuple(layer.name for layer in all_layers(model) if layer is not model),
        shapes=frozenset(_shape_text(v.shape) for v in model.trainable_variables),
        seconds=_mean([trace.seconds[number] for number in recorded]),
        inputs={} if model.jit_compile else inputs_of(traced_step, data),
        guarded=around is not None,
        nursery=around is not None and around.nursery,
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
    return tuple(event for event in alive.values() if FOLDED in event.op or _is_constant(event))


def _is_constant(event: Event) -> bool:
    """Whether an op made it when it was set up, not when it ran: a constant, such as zeros of a known shape."""
    return bool(event.op) and not event.region and not event.shape


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


def _smaller(
    step: Callable[[Batch], Any], spec: Spec, batches: tuple[int, ...], seconds: float
) -> tuple[int, ...]:
    """Runs a step of each smaller batch, and returns those below the largest that leaves time for several."""
    for position, batch in enumerate(batches[:-1], 1):
        data = batch_of(spec, batch)
        begin = time.monotonic()
        step(data)
        mark()
        # Twice the samples take at most twice the time, and the next batch but one four times as long.
        if _STEPS.start * 4 * (time.monotonic() - begin) > seconds:
            return batches[:position]
    return batches[:-1]


def _in_a_row(
    step: Callable[[Batch], Any], data: Batch, seconds: float, most: int, fresh: Sequence[Any]
) -> tuple[int, int]:
    """Runs steps as often as the time allows, `most` times at most; returns how many are first steps, and all.

    With fresh optimizers, one in so many has their state made anew before it, as in a run's first step: the gaps
    that it leaves stay for the whole run, and differ from run to run, too.
    """
    begin = time.monotonic()
    logs: list[Any] = []
    most = min(most, _STEPS.stop - 1)
    firsts = count = 0
    wanted = 1
    while count < _STEPS.start or (count < most and time.monotonic() - begin < seconds):
        if firsts < wanted:
            for optimizer in fresh:
                if optimizer.built:
                    share_slots(optimizer)
            mark()
            firsts += 1
        # Keras, too, holds the logs of a step until those of the next are there.
        logs[:] = [step(data)]
        mark()
        count += 1
        if count == 1 and fresh:
            wanted = max(1, int(min(most, seconds / (time.monotonic() - begin))) // STEPS)
    return firsts, count


def _mean(steps: list[dict[str, float]]) -> dict[str, float]:
    return {op: sum(step.get(op, 0.0) for step in steps) / len(steps) for op in steps[-1]}


def _variables(model: Any, optimizers: list[Any]) -> list[Variable]:
    found = [Variable(v.path, "weights", _bytes(v), _is_random(v)) for v in model.variables]
    for optimizer in optimizers:
        found += [Variable(v.path, "optimizer state", _bytes(v), False) for v in optimizer.variables]
    return found


def _others(step: Any, data: Batch, model: Any, optimizers: list[Any], kind: str) -> list[Variable]:
    """What a step keeps beside the model's and the optimizers' variables, as the sums of gradients are."""
    if not hasattr(step, "get_concrete_function"):
        return []
    known = [*model.variables, *model.metrics_variables]
    known += [variable for optimizer in optimizers for variable in optimizer.variables]
    names = {id(variable.value) for variable in known}
    return [
        Variable(variable.name, kind, _bytes(variable), False)
        for variable in step.get_concrete_function(data).variables
        if id(variable) not in names and variable.shape.is_fully_defined()
    ]


def _is_random(variable: Any) -> bool:
    """Whether a weight is drawn at random first: Keras's biases, of whatever rank, are zeros."""
    return len(variable.shape) > 1 and not variable.path.endswith("bias")


def _placed(variables: Sequence[Any]) -> list[Variable]:
    """What is kept around a step, of whatever size it is now."""
    return [
        Variable(variable.name, "gradients", _bytes(variable.read_value()), False) for variable in variables
    ]


def _bytes(variable: Any) -> int:
    import tensorflow as tf

    elements = 1
    for size in variable.shape:
        elements *= int(size)
    return elements * int(tf.as_dtype(variable.dtype).size)


def _shape_text(shape: Any) -> str:
    return "[" + ",".join(str(int(size)) for size in shape) + "]"
