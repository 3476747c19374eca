"""The record of a training as it begins: what is known of the model, the call, the budget and the plan."""

import contextlib
import math
import secrets
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras

from memfit.budgets.budget import budget
from memfit.budgets.peaks import device_name
from memfit.compat.versions import read_versions
from memfit.data.linting.lint import lint
from memfit.errors import InvalidInput
from memfit.planning.plan import Plan
from memfit.sizes import Size
from memfit.training.records.files import find_file, read_record, records_folder
from memfit.training.records.host_prediction import predict_host
from memfit.training.records.record import RUNNING, RunRecord, this_process
from memfit.training.records.surroundings import environment_variables, machine_facts

# Of the arguments of `fit` these are numbers or switches; the rest is data, code, or may be anything.
_ARGUMENTS = (
    "epochs",
    "initial_epoch",
    "steps_per_epoch",
    "validation_split",
    "validation_steps",
    "validation_batch_size",
    "validation_freq",
)


@dataclass(frozen=True)
class Place:
    """Where a record goes, and what it is called.

    Attributes:
        folder: The folder of its file.
        id: What names it; another process of the same run opens it by that.
        command: "memfit.fit" or "memfit run".
        script: The script's file name.
        call: Which call of fit() of the script it is, counted from 0.
    """

    folder: Path
    id: str
    command: str
    script: str = ""
    call: int = 0


def new_place() -> Place | None:
    """Returns the place for a new record of a plain `memfit.fit`; None where records are turned off."""
    folder = records_folder()
    if folder is None:
        return None
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Place(folder, secrets.token_hex(3), "memfit.fit", "" if file is None else Path(file).name)


def open_record(
    place: Place,
    model: keras.Model,
    arguments: Mapping[str, Any],
    plan: Plan | None,
    *,
    memory: int | str | None,
    allow: str,
    planning_seconds: float | None,
) -> RunRecord:
    """Returns the record of a training that begins now, or goes on after a restart.

    Args:
        place: Where it goes.
        arguments: Keras's arguments.
        memory: What was asked for; None for what is free.
        allow: The farthest that a plan may go.
        planning_seconds: How long the plan took to make.
    """
    record = new_record(
        place,
        memory,
        model=str(model.name),
        facts=_describe(model, arguments),
        batch_size=_batch_size(plan, arguments),
        host_parts=_predict_host(place, model, arguments, plan),
        allow=allow,
        plan=plan,
        planning_seconds=None if planning_seconds is None else round(planning_seconds, 2),
        findings=_lint(arguments),
    )
    if plan is not None:
        record = replace(record, memory=plan.memory)
    earlier = _earlier(place)
    if earlier is None:
        return record
    kept = ("begun", "restarts", "marks", "series", "device_peak", "host_peak", "first_step_seconds", "steps")
    return replace(record, outcome=RUNNING, **{name: getattr(earlier, name) for name in kept})


def new_record(place: Place, memory: int | str | None, **known: Any) -> RunRecord:
    """Returns the record of something that trains from now on, with where it runs.

    Args:
        memory: What was asked for; None for what is free.
        **known: Further fields.
    """
    now, there = time.time(), budget()
    size, source = None, "asked for"
    if memory is None:
        size, source = there.device.free, f"free on {there.device.name} ({there.device.source})"
    else:
        with contextlib.suppress(InvalidInput):
            size = Size(memory, of=there.device.total)
    return RunRecord(
        id=place.id,
        begun=now,
        updated=now,
        process=this_process(),
        command=place.command,
        script=place.script,
        call=place.call,
        versions=read_versions(),
        environment=environment_variables(),
        machine=machine_facts(),
        memory=size,
        memory_source=source,
        host_memory=there.host.total,
        device=device_name(),
        **known,
    )


def _predict_host(
    place: Place, model: keras.Model, arguments: Mapping[str, Any], plan: Plan | None
) -> dict[str, int]:
    checkpoints = place.command == "memfit run"
    try:
        return predict_host(model, arguments, plan, device_name(), checkpoints=checkpoints)
    except Exception:  # a record is not worth an error
        return {}


def _earlier(place: Place) -> RunRecord | None:
    file = find_file(place.folder, place.id)
    with contextlib.suppress(InvalidInput):
        return None if file is None else read_record(file)
    return None


def _batch_size(plan: Plan | None, arguments: Mapping[str, Any]) -> int | None:
    size = arguments.get("batch_size") if plan is None else plan.batch_size
    return int(size) if isinstance(size, int) else None


def _describe(model: keras.Model, arguments: Mapping[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "class": type(model).__name__,
        "layers": len(model.layers),
        "parameters": sum(math.prod(weight.shape) for weight in model.weights),
        "optimizer": type(getattr(model, "optimizer", None)).__name__,
        "jit_compile": bool(getattr(model, "jit_compile", False)),
        "precision": model.dtype_policy.name,
    }
    given = {name: arguments.get(name) for name in _ARGUMENTS}
    facts |= {name: value for name, value in given.items() if isinstance(value, int | float)}
    facts["data"] = type(arguments.get("x")).__name__
    facts["validates"] = arguments.get("validation_data") is not None or bool(given["validation_split"])
    return facts


def _lint(arguments: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """What the linter says of the pipelines; None where there is none, or the linter cannot read it."""
    import tensorflow as tf

    given = {"training data": arguments.get("x"), "validation data": arguments.get("validation_data")}
    datasets = {name: data for name, data in given.items() if isinstance(data, tf.data.Dataset)}
    if not datasets:
        return None
    try:
        return replace(lint(*datasets.values()), names=tuple(datasets)).to_json()
    except Exception:  # a record is not worth an error
        return None
