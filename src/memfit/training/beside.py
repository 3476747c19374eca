"""What lies in the memory beside a loss function: the optimizer's state, other networks, data."""

import gc
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from memfit.budgets.budget import read_count
from memfit.budgets.peaks import device_name
from memfit.compat.keras_optimizers import is_built_for
from memfit.estimation.recording.kept import size_of
from memfit.steps.losses.function import LossFunction

# What an optimizer keeps for each variable, where none is built yet: Adam's two moments.
_MOMENTS = 2


def measure_beside(loss: LossFunction, tensors: Sequence[Any]) -> tuple[int, str]:
    """Returns the bytes that are in use now beside a function's variables and batch, or will be, and what they are.

    The optimizer's state is there if it is built for the function's variables; otherwise room is left for Adam's.
    """
    slots = _optimizer_state(loss)
    count = read_count(device_name())
    to_come = _MOMENTS * sum(map(size_of, loss.values)) if slots is None else 0
    if count is None:
        return to_come + (slots or 0), "for the optimizer's state"
    sized = [tensor for tensor in tensors if tf.is_tensor(tensor) and tensor.shape.is_fully_defined()]
    in_use = max(0, int(count.current) - sum(map(size_of, [*loss.variables, *sized])))
    what = "in use now" if slots is not None else "in use now, and two moments of an optimizer to come"
    return in_use + to_come, what


def _optimizer_state(loss: LossFunction) -> int | None:
    """The bytes of the state of optimizers that are built for a function's variables; None where there is none."""
    weight = loss.values[0]
    # `isinstance` would run the code of proxies.
    optimizers = [thing for thing in gc.get_objects() if issubclass(type(thing), keras.optimizers.Optimizer)]
    built = [optimizer for optimizer in optimizers if is_built_for(optimizer, weight)]
    return sum(size_of(slot) for optimizer in built for slot in optimizer.variables) if built else None
