"""The host memory that a process is predicted to take: what it has already, and what the training adds."""

from collections.abc import Mapping
from typing import Any

import keras
import psutil
import tensorflow as tf

from memfit.data.linting.holding import held_by
from memfit.estimation.recording.kept import size_of
from memfit.estimation.waiting import Waiting, held_bytes
from memfit.planning.plan import Plan

BEFORE, STEP, DATA, COPY = (
    "the process when the training began (measured)",
    "the training step, on the CPU",
    "the input pipeline",
    "a copy of the weights for checkpoints",
)


def predict_host(
    model: keras.Model, arguments: Mapping[str, Any], plan: Plan | None, device: str, *, checkpoints: bool
) -> dict[str, int]:
    """Returns what the process will have on the host, by what it is for; empty where that cannot be told.

    Predicted is what a training adds by itself. What else the script does is not, nor what the
    operating system's allocator keeps between two steps outside of an arena.

    Args:
        arguments: Keras's arguments.
        plan: The plan; None for none.
        device: The device that trains, such as "CPU:0".
        checkpoints: Whether checkpoints are written beside the training, as `memfit run` does.
    """
    on_cpu = device.startswith("CPU")
    if on_cpu and plan is None:
        return {}
    variables = [*model.variables, *getattr(model.optimizer, "variables", ())]
    kept = sum(map(size_of, {id(variable): variable for variable in variables}.values()))
    parts = {BEFORE: int(psutil.Process().memory_info().rss)}
    if on_cpu and plan is not None:
        # Weights are there already; what waits beside a step is part of the plan.
        parts[STEP] = max(0, int(plan.predicted) - kept)
    data = _count_data(arguments, plan, on_cpu=on_cpu)
    if data is None:
        return {}
    parts[DATA] = data
    parts[COPY] = kept if checkpoints else 0
    return {name: size for name, size in parts.items() if size}


def _count_data(arguments: Mapping[str, Any], plan: Plan | None, *, on_cpu: bool) -> int | None:
    """Returns what pipelines hold; None where a graph does not tell."""
    x = arguments.get("x")
    validation = arguments.get("validation_data")
    total = 0
    # What waits of the training data is part of a plan for the CPU.
    for data in (validation,) if on_cpu else (x, validation):
        if isinstance(data, tf.data.Dataset):
            held = held_by(data)
            if held is None:
                return None
            total += held
    if isinstance(x, tf.data.Dataset) or on_cpu:
        return total
    arrays = (x, arguments.get("y"), arguments.get("sample_weight"))
    samples = len(keras.tree.flatten(x)[0]) if held_bytes(x) else 0
    waiting = Waiting(held_bytes(arrays), held_bytes(arrays) // samples if samples else 0)
    return total + waiting.at(0 if plan is None else plan.batch_size)
