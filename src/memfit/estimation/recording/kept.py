"""The variables that are there before the first step: whose they are, and what allocated them."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from memfit.estimation.optimizers import optimizers_of
from memfit.estimation.recording.recording import Variable
from memfit.estimation.recording.sending import made_in_order
from memfit.estimation.recording.step import Model, Step, Tensor, Traced
from memfit.estimation.recording.trace import Event


class Setup:
    """What was allocated while a step was built and traced, to be looked at before the first step runs.

    Args:
        events: The allocations and deallocations, in order.
        variables: TensorFlow's variables that may have been made then.
    """

    def __init__(self, events: tuple[Event, ...], variables: Iterable[Tensor]) -> None:
        self.events = events
        alive = _alive_after(events)
        self._made = {
            id(variable): alive[address]
            for variable in variables
            if alive and (address := _address(variable)) in alive
        }

    def event_of(self, variable: Tensor) -> int | None:
        """Returns the position of the event that allocated a variable's first buffer; None if none did."""
        return self._made.get(id(variable))


def without_births(events: tuple[Event, ...], variables: Iterable[Tensor]) -> tuple[Event, ...]:
    """Returns events without those that allocated what is in these of TensorFlow's variables when they are over."""
    alive = _alive_after(events)
    births = {alive.get(_address(variable)) for variable in variables}
    return tuple(event for position, event in enumerate(events) if position not in births)


def _alive_after(events: Iterable[Event]) -> dict[int, int]:
    """The positions of the events that allocated what is there when all are over, by address."""
    alive: dict[int, int] = {}
    for position, event in enumerate(events):
        if event.freed:
            alive.pop(event.address, None)
        elif event.requested:
            alive[event.address] = position
    return alive


def kept_variables(
    model: Model, optimizers: Sequence[Any], step: Step, trace: Traced | None, setup: Setup, *, own: bool
) -> tuple[Variable, ...]:
    """Returns the variables that are there before the first step, with their sizes after some.

    Args:
        optimizers: Those of its optimizers whose state is not made by the first step.
        setup: What was allocated before its first run.
        own: Whether the step is the model's own, so that what it keeps besides are weights.
    """
    kept = [Variable(v.path, "weights", size_of(v), is_random(v)) for v in made_in_order(model.variables)]
    for optimizer in optimizers:
        kept += [
            Variable(v.path, "optimizer state", size_of(v), False, setup.event_of(v.value))
            for v in optimizer.variables
        ]
    buffers = {id(variable): variable for variable in step.variables()}
    known = {id(v.value) for v in (*model.variables, *model.metrics_variables)}
    known |= {id(v.value) for optimizer in optimizers_of(model) for v in optimizer.variables}
    for variable in () if trace is None else trace.variables:
        if id(variable) not in known and id(variable) not in buffers and variable.shape.is_fully_defined():
            kind = "weights" if own else "gradients"
            kept.append(Variable(variable.name, kind, size_of(variable), False, setup.event_of(variable)))
    kept += [
        Variable(variable.name, "gradients", size_of(variable.read_value()), False, setup.event_of(variable))
        for variable in buffers.values()
    ]
    return tuple(kept)


def is_random(variable: Any) -> bool:
    """Whether a weight is drawn at random first: Keras's biases, of whatever rank, are zeros."""
    return len(variable.shape) > 1 and not variable.path.endswith("bias")


def size_of(variable: Any) -> int:
    """Returns the bytes of a variable or tensor."""
    import tensorflow as tf

    return math.prod(map(int, variable.shape)) * int(tf.as_dtype(variable.dtype).size)


def _address(variable: Tensor) -> int:
    """Where a variable's buffer lies: a tensor that is read from it shares it."""
    import tensorflow as tf

    value = variable.read_value()
    if not value.dtype.is_numpy_compatible or value.dtype in (tf.string, tf.resource, tf.variant):
        return 0
    value = tf.bitcast(value, tf.uint8) if value.dtype == tf.bfloat16 else value
    return int(np.asarray(memoryview(value)).ctypes.data)
