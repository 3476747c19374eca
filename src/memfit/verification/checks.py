"""The checks: each trains on the device, compares, and says pass or fail with its figures."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from memfit.budgets.configuration import configure
from memfit.budgets.isolation import isolated
from memfit.budgets.nvml import gpus
from memfit.sizes import Size
from memfit.verification.trainings import (
    NETWORKS,
    Predicted,
    Trained,
    measure_peaks,
    measure_speed,
    predict,
    train_planned,
    train_stock,
    train_unplanned,
)

# Whether it passed, what was expected and measured, and more for a bug report.
_Outcome: TypeAlias = tuple[bool, str, str, dict[str, Any]]
# Predictions are meant to be within this of what is measured in 95 of 100 trainings.
_PEAK_ERROR = 0.12
# Micro-batches add gradients up in parts, and float32 rounds each sum: what weights of about 1 may differ by.
_ROUNDING = 1e-6
# What a step of a job that fits may take longer; small steps are timed on machines that do other things too.
_SLOWER = 1.10
_SECONDS = 600.0
_ARENA = "4GiB"  # far more than any of the trainings takes
_EXACT, _GUARDED, _TIMED = "convolutions", "transformer", "dense"


@dataclass(frozen=True)
class Check:
    """What was checked, and what came of it.

    Attributes:
        name: What is promised.
        of: The training it was tried on.
        passed: Whether it held.
        expected: What should have come, for a person.
        measured: What came.
        detail: More of it for a bug report.
    """

    name: str
    of: str
    passed: bool
    expected: str
    measured: str
    detail: dict[str, Any]


def run_checks() -> Iterator[Check]:
    """Runs all checks, one after the other; one that fails to run is one that did not pass."""
    names = list(NETWORKS)
    try:
        predicted: dict[str, Predicted] = run_on_device(predict, names)
    except Exception as error:  # whatever goes wrong on a machine that was never seen
        yield _failed("peak as predicted", "all", error)
        return
    checks: list[tuple[str, str, Callable[[], _Outcome]]] = [
        *(("peak as predicted", name, partial(_check_peak, name, predicted[name])) for name in names),
        ("an exact plan trains as stock Keras", _EXACT, partial(_check_exact, predicted[_EXACT].half)),
        ("an OOM is undone and the step repeated", _GUARDED, partial(_check_oom, predicted[_GUARDED].half)),
        ("a job that fits is as fast", _TIMED, _check_speed),
    ]
    for name, of, check in checks:
        try:
            yield Check(name, of, *check())
        except Exception as error:  # whatever goes wrong in one check, the others are still run
            yield _failed(name, of, error)


def run_on_device(function: Callable[..., Any], *args: Any, memory: int | None = None) -> Any:
    """Runs `function(*args)` in a fresh process on the first GPU, or in an arena on the CPU where there is none.

    Args:
        function: What to run.
        *args: Its arguments.
        memory: Bytes that it may take there; as many as there are unless told.
    """
    has_gpu = bool(gpus())
    arena = None if has_gpu else memory or _ARENA
    return isolated(_run, has_gpu, memory, function, args, memory=arena, timeout=_SECONDS)


def _run(has_gpu: bool, memory: int | None, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Limits what TensorFlow takes of the first GPU, and runs there; nothing is remembered from an earlier run."""
    os.environ["MEMFIT_CACHE"] = os.environ["MEMFIT_RUNS"] = "0"
    if has_gpu:
        configure(memory=memory, visible=[0])
    return function(*args)


def _failed(name: str, of: str, error: Exception) -> Check:
    text = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    return Check(name, of, False, "to run", f"{type(error).__name__}: {text}", {"error": repr(error)[:4000]})


def _check_peak(name: str, predicted: Predicted) -> _Outcome:
    """Trains in what is said to be needed, and compares the steps' peaks with the predicted one."""
    peaks: list[int] = run_on_device(measure_peaks, name, memory=predicted.needed)
    low, high = min(peaks), max(peaks)
    nearest = min(max(predicted.peak, low), high)
    error = predicted.peak / nearest - 1 if nearest else float("nan")
    seen = Size(high) if str(Size(low)) == str(Size(high)) else f"{Size(low)} to {Size(high)}"
    return (
        abs(error) <= _PEAK_ERROR,
        f"{Size(predicted.peak)}, in {Size(predicted.needed)}",
        f"{seen} ({error:+.1%})" if high else "this device's allocator does not count memory",
        {
            "predicted": predicted.peak,
            "needed": predicted.needed,
            "measured": peaks,
            "source": predicted.source,
        },
    )


def _check_exact(memory: int) -> _Outcome:
    stock: Trained = run_on_device(train_stock, _EXACT)
    planned: Trained = run_on_device(train_planned, _EXACT, memory, memory=memory)
    different, detail = _compare(stock, planned, memory)
    measured = f"identical in {Size(memory)}" if not different else f"{different} variables differ"
    if planned.shortages:
        measured += ", but memory ran out on the way"
    return not different and not planned.shortages, "bit by bit", measured, detail


def _check_oom(memory: int) -> _Outcome:
    stock: Trained = run_on_device(train_stock, _GUARDED)
    guarded: Trained = run_on_device(train_unplanned, _GUARDED, memory=memory)
    _, detail = _compare(stock, guarded, memory)
    largest = detail["largest_difference"]
    measured = f"training continued; variables within {largest:.0e}"
    if not guarded.shortages:
        measured = f"nothing ran out in {Size(memory)}"
    passed = bool(guarded.shortages) and largest <= _ROUNDING
    return passed, f"within {_ROUNDING:g} of stock", measured, detail


def _check_speed() -> _Outcome:
    stock, ours = run_on_device(measure_speed, _TIMED)
    measured = f"{ours / stock:.2f}x ({1000 * stock:.0f} ms a step)"
    detail = {"stock_seconds": stock, "memfit_seconds": ours}
    return ours <= _SLOWER * stock, f"at most {_SLOWER:.2f}x", measured, detail


def _compare(stock: Trained, ours: Trained, memory: int) -> tuple[int, dict[str, Any]]:
    """Counts the variables that differ in any bit; the largest difference of any value (NaN: infinite) and more."""
    import numpy as np

    different, largest = 0, 0.0
    for (name, one), (_, two) in zip(stock.variables, ours.variables, strict=True):
        if one.shape != two.shape:
            raise ValueError(f"{name} has shape {two.shape}, and {one.shape} in stock Keras")
        if one.tobytes() != two.tobytes():
            different += 1
            apart = np.abs(one.astype("float64") - two.astype("float64"))
            largest = max(largest, float(np.nan_to_num(apart, nan=np.inf, posinf=np.inf).max()))
    return different, {
        "stock_loss": stock.loss,
        "memfit_loss": ours.loss,
        "largest_difference": largest,
        "recipe": ours.plan,
        "shortages": list(ours.shortages),
        "memory": memory,
    }
