"""The checks: each trains on the device, compares, and says pass or fail with its figures."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from memfit.sizes import Size
from memfit.verification.device import run_on_device
from memfit.verification.networks import NETWORKS
from memfit.verification.trainings import (
    Predicted,
    Trained,
    measure_peaks,
    measure_speed,
    predict,
    train_planned,
    train_stock,
    train_unplanned,
)

# Predictions are meant to be within this of what is measured in 95 of 100 trainings.
_PEAK_ERROR = 0.12
# Micro-batches add gradients up in parts, and float32 rounds each sum: what weights of about 1 may differ by.
_ROUNDING = 1e-6
# What a step of a job that fits may take longer; small steps are timed on machines that do other things too.
_SLOWER = 1.10
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

    def to_json(self) -> dict[str, Any]:
        """Returns the check as plain data."""
        return asdict(self)


def run_checks() -> Iterator[Check]:
    """Runs all checks, one after the other; one that fails to run is one that did not pass."""
    names = list(NETWORKS)
    try:
        predicted: dict[str, Predicted] = run_on_device(predict, names)
    except Exception as error:  # whatever goes wrong on a machine that was never seen
        yield _failed("peak as predicted", "all", error)
        return
    for name in names:
        yield _guarded("peak as predicted", name, lambda name=name: _check_peak(name, predicted[name]))
    yield _guarded("an exact plan trains as stock Keras", _EXACT, lambda: _check_exact(predicted[_EXACT]))
    yield _guarded(
        "an OOM is undone and the step repeated", _GUARDED, lambda: _check_oom(predicted[_GUARDED])
    )
    yield _guarded("a job that fits is as fast", _TIMED, _check_speed)


def _guarded(name: str, of: str, check: Any) -> Check:
    try:
        done: Check = check()
    except Exception as error:  # whatever goes wrong in one check, the others are still run
        return _failed(name, of, error)
    return done


def _failed(name: str, of: str, error: Exception) -> Check:
    text = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    return Check(name, of, False, "to run", f"{type(error).__name__}: {text}", {"error": repr(error)[:4000]})


def _check_peak(name: str, predicted: Predicted) -> Check:
    """Trains in what is said to be needed, and compares the steps' peaks with the predicted one."""
    peaks: list[int] = run_on_device(measure_peaks, name, memory=predicted.needed)
    low, high = min(peaks), max(peaks)
    nearest = min(max(predicted.peak, low), high)
    error = predicted.peak / nearest - 1 if nearest else float("nan")
    seen = Size(high) if str(Size(low)) == str(Size(high)) else f"{Size(low)} to {Size(high)}"
    return Check(
        "peak as predicted",
        name,
        abs(error) <= _PEAK_ERROR,
        f"{Size(predicted.peak)}, in {Size(predicted.needed)}",
        f"{seen} ({error:+.1%})" if high else "this device's allocator does not count",
        {
            "predicted": predicted.peak,
            "needed": predicted.needed,
            "measured": peaks,
            "source": predicted.source,
        },
    )


def _check_exact(predicted: Predicted) -> Check:
    stock: Trained = run_on_device(train_stock, _EXACT)
    planned: Trained = run_on_device(train_planned, _EXACT, predicted.half, memory=predicted.half)
    different, largest = _compare(stock, planned)
    measured = f"identical in {Size(predicted.half)}" if not different else f"{different} variables differ"
    return Check(
        "an exact plan trains as stock Keras",
        _EXACT,
        not different and not planned.shortages,
        "bit by bit",
        f"{measured}, but memory ran out on the way" if planned.shortages else measured,
        {**_describe(stock, planned, largest), "memory": predicted.half},
    )


def _check_oom(predicted: Predicted) -> Check:
    stock: Trained = run_on_device(train_stock, _GUARDED)
    guarded: Trained = run_on_device(train_unplanned, _GUARDED, memory=predicted.half)
    _, largest = _compare(stock, guarded)
    if guarded.shortages:
        measured = f"trained on; variables within {largest:.0e}"
    else:
        measured = f"nothing ran out in {Size(predicted.half)}"
    return Check(
        "an OOM is undone and the step repeated",
        _GUARDED,
        bool(guarded.shortages) and largest <= _ROUNDING,
        f"within {_ROUNDING:g} of stock",
        measured,
        {**_describe(stock, guarded, largest), "memory": predicted.half},
    )


def _check_speed() -> Check:
    stock, ours = run_on_device(measure_speed, _TIMED)
    return Check(
        "a job that fits is as fast",
        _TIMED,
        ours <= _SLOWER * stock,
        f"at most {_SLOWER:.2f}x",
        f"{ours / stock:.2f}x ({1000 * stock:.0f} ms a step)",
        {"stock_seconds": stock, "memfit_seconds": ours},
    )


def _compare(stock: Trained, ours: Trained) -> tuple[int, float]:
    """Returns how many variables differ in any bit, and the largest difference of any value (NaN: infinite)."""
    import numpy as np

    different, largest = 0, 0.0
    for (name, one), (_, two) in zip(stock.variables, ours.variables, strict=True):
        if one.shape != two.shape:
            raise ValueError(f"{name} has shape {two.shape}, and {one.shape} in stock Keras")
        if one.tobytes() != two.tobytes():
            different += 1
            apart = np.abs(one.astype("float64") - two.astype("float64"))
            largest = max(largest, float(np.nan_to_num(apart, nan=np.inf, posinf=np.inf).max()))
    return different, largest


def _describe(stock: Trained, ours: Trained, largest: float) -> dict[str, Any]:
    return {
        "stock_loss": stock.loss,
        "memfit_loss": ours.loss,
        "largest_difference": largest,
        "recipe": ours.plan,
        "shortages": list(ours.shortages),
    }
