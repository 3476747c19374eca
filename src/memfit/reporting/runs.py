"""Runs on the terminal: the table at the end of `memfit run`, and the list of `memfit runs`."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memfit.planning.fidelity import NOT_EXACT, Fidelity
from memfit.reporting.caches import describe_age
from memfit.sizes import Size
from memfit.tables import table
from memfit.training.records.record import FINISHED, REFUSED, RunRecord

_MOST_SHOWN = 3  # calls of fit() that are shown one by one at the end of a run
_LONGEST_NAME = 20
# What stays out of `--json`, where it would be most of the text: the record's file has it.
_LEFT_OUT = ("series", "marks", "findings")


def describe_end(records: Sequence[tuple[Path, RunRecord]], *, kept: bool, next_command: str = "") -> str:
    """Returns the table at the end of a run.

    Args:
        records: The records of what was trained, with their files.
        kept: Whether the files stay.
        next_command: What to run to see more, with "RUN" for the id; empty for nothing.
    """
    lines = []
    for path, record in records[-_MOST_SHOWN:]:
        lines.append(f"{_name(record)}: {_describe_outcome(record)}")
        rows = []
        if record.outcome != REFUSED:
            rows += [["peak", _describe_peaks(record)], ["process", _describe_process(record)]]
            rows += [["time", _describe_time(record)]]
            rows += [["events", _describe_events(record)], ["restarts", str(record.restarts or "none")]]
        rows += [["record", f"{record.id}, {_short(path)}" if kept else "not kept (MEMFIT_RUNS=0)"]]
        lines += ["  " + line for line in table(rows).splitlines()]
    if len(records) > _MOST_SHOWN:
        lines.append(f"and {len(records) - _MOST_SHOWN} earlier fit() calls: memfit runs")
    if next_command and kept and records:
        lines.append(f"as an HTML page: {next_command.replace('RUN', records[-1][1].id)}")
    return "\n".join(lines)


def describe_runs(records: Sequence[RunRecord], most: int, next_command: str) -> str:
    """Returns the list of runs, the newest first, with the next command at its end."""
    if not records:
        return "No runs yet: memfit.fit and memfit run leave a record of each training."
    rows = [
        [
            record.id,
            describe_age(time.time() - record.begun),
            _cut(record.model),
            record.batch_size or "-",
            record.predicted or "-",
            record.device_peak or "-",
            describe_seconds(record.seconds),
            record.state,
        ]
        for record in records[:most]
    ]
    head = ["run", "begun", "model", "batch", "predicted", "measured", "time", "ended"]
    lines = [table(rows, head=head, right=[3, 4, 5, 6])]
    if len(records) > most:
        lines.append(f"and {len(records) - most} more: memfit runs --all")
    return "\n".join([*lines, f"one of them as an HTML page: {next_command.replace('RUN', records[0].id)}"])


def to_summary(record: RunRecord, path: Path | None = None) -> dict[str, Any]:
    """Returns a record as plain data without what makes it long."""
    plain = {name: value for name, value in record.to_json().items() if name not in _LEFT_OUT}
    if plain["plan"] is not None:
        plain["plan"] = {name: value for name, value in plain["plan"].items() if name != "timeline"}
    counts = {kind: len(record.of_kind(kind)) for kind in ("out of memory", "death", "checkpoint")}
    return {
        **plain,
        "state": record.state,
        "seconds": round(record.seconds, 2),
        "events": counts,
        "file": None if path is None else str(path),
    }


def describe_seconds(seconds: float) -> str:
    """Returns a time as one reads it: "0.41 s", "41 s", "12 min", "3.2 h"."""
    if seconds < 0.1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _name(record: RunRecord) -> str:
    number = f"fit() {record.call + 1}: " if record.call > 0 else ""
    batch = "" if record.batch_size is None else f", batch {record.batch_size}"
    return f"{number}{record.model}{batch}"


def _describe_outcome(record: RunRecord) -> str:
    if record.state == FINISHED or record.epoch is None:
        return record.state
    return f"{record.state} in epoch {record.epoch + 1}, after batch {record.batch}"


def describe_uncounted(record: RunRecord) -> str:
    """Says why there is no measured peak of the device, and what the process took instead."""
    told = f"TensorFlow does not count memory on {record.device or 'this device'}"
    return told if record.host_peak is None else f"{told}, the process had {record.host_peak} at most"


def is_exact(record: RunRecord) -> bool:
    """Whether neither the plan nor an answer to a shortage changed the mathematics."""
    if record.plan is not None and record.plan.fidelity != Fidelity.EXACT:
        return False
    return not any(NOT_EXACT in mark.says for mark in record.of_kind("out of memory"))


def _describe_peaks(record: RunRecord) -> str:
    plan, parts = record.plan, []
    if record.device_peak is not None:
        parts.append(f"{record.device_peak} measured")
    if plan is not None:
        stock = "" if plan.changes_nothing else f" (stock Keras {plan.stock})"
        parts.append(f"{plan.predicted} {'at most' if plan.is_bound else 'predicted'}{stock}")
    elif record.memory is not None and record.device_peak is not None:
        over = record.device_peak - record.memory
        budget = f"the budget of {record.memory}"
        parts.append(f"{Size(over)} over {budget}" if over > 0 else f"within {budget}")
    if record.device_peak is None:
        parts.append(f"not counted on {record.device or 'this device'}")
    return ", ".join(parts)


def _describe_process(record: RunRecord) -> str:
    parts = [] if record.host_peak is None else [f"{record.host_peak} measured"]
    if record.host_predicted is not None:
        bound = record.plan is not None and record.plan.is_bound
        parts.append(f"{record.host_predicted} {'at most' if bound else 'predicted'}")
    return f"{', '.join(parts) or 'not measured'} on the host"


def _describe_time(record: RunRecord) -> str:
    told, plan = describe_seconds(record.seconds), record.plan
    if record.step_seconds is not None:
        told += f", {describe_seconds(record.step_seconds)} a step"
    if plan is None or plan.changes_nothing:
        return told
    if record.step_seconds is None:
        return f"{told}, {plan.time:.2f}x stock Keras's time (predicted)"
    stock = describe_seconds(record.step_seconds / plan.time)
    return f"{told}; stock Keras about {stock} (predicted: {plan.time:.2f}x)"


def count_times(count: int) -> str:
    """Returns "once", "twice", "3 times"."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _describe_events(record: RunRecord) -> str:
    shortages, leaks = len(record.of_kind("out of memory")), len(record.of_kind("leak"))
    inexact = any(NOT_EXACT in mark.says for mark in record.of_kind("out of memory"))
    parts = [
        f"out of memory {count_times(shortages)}{f', {NOT_EXACT} since' * inexact}" if shortages else "",
        "host memory grows (a leak)" if leaks else "",
    ]
    return "; ".join(filter(None, parts)) or "none"


def _short(path: Path) -> str:
    """The path from the home or the current folder, where that is shorter."""
    for folder, name in ((Path.cwd(), ""), (Path.home(), "~/")):
        if path.is_relative_to(folder):
            return f"{name}{path.relative_to(folder)}"
    return str(path)


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 3] + "..."
