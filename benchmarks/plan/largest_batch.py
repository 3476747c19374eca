"""The largest batch that trains in an arena: stock Keras by trial runs, memfit by its plan.

Every trial is two steps in a fresh process in the arena. What memfit plans is trained there too, so that a batch
counts only if it really runs, and its peak is held against the predicted one. Names of models on the command line
choose some of them.

Where a plan computes micro-batches, its peak hardly depends on the batch, and the largest batch is whatever one
likes; so it is asked for the wanted multiple of stock's batch, and that is trained: one whole batch, and two
micro-batches of a second one.

To keep this benchmark short, stock's trials begin where an earlier run ended. What a user would need who doubles
from 1 and then bisects follows from the batch found: that many trials, each at the time on the line between a trial
of one sample and one of the largest batch, or that of a trial that ran out.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import memfit
from machine import write
from memfit.tables import table
from models import compiled, data

MEMORY = {"MobileNetV2": "512MiB", "U-Net": "512MiB", "ResNet50": "1GiB", "VGG19": "1536MiB"}
# Where stock's trials begin: what was seen before.
BEGIN = {"MobileNetV2": 20, "U-Net": 15, "ResNet50": 23, "VGG19": 40}
WANTED = {"exact": 3, "near": 16}  # times stock's batch
NAME = "largest-batch"


def stock_trains(name: str, batch: int) -> bool:
    """Trains two steps as stock Keras does; runs in the arena."""
    model = compiled(name)
    model.fit(*data(model, 2 * batch), batch_size=batch, verbose=0)
    return True


def memfit_trains(name: str, plan: memfit.Plan) -> dict[str, Any]:
    """Trains a batch, and a second one or two micro-batches of it, with a plan; runs in the arena."""
    model = compiled(name)
    samples = plan.batch_size + (2 * plan.micro_batch if plan.micro_batch else plan.batch_size)
    history = memfit.fit(model, *data(model, samples), plan=plan, verbose=0)
    return {
        "measured_mib": history.memory.measured / 2**20,
        "measured_over_predicted": history.memory.measured / history.memory.predicted,
        "events": [str(event) for event in history.memory.events],
    }


def tried(name: str, function: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    """Returns what a trial in the arena gives (None where it runs out of memory or dies of it), and its seconds."""
    import tensorflow as tf

    begun = time.perf_counter()
    try:
        result = memfit.isolated(function, name, *args, memory=MEMORY[name])
    except (tf.errors.ResourceExhaustedError, memfit.OutOfMemory, memfit.ProcessDied):
        result = None
    return result, time.perf_counter() - begun


def stock_largest(name: str) -> dict[str, Any]:
    """Stock's largest batch to within a sixteenth, and the trials and seconds a user would need to find it."""
    seconds: dict[int, float] = {}
    outcomes: dict[int, bool] = {}

    def fits(batch: int) -> bool:
        if batch not in outcomes:
            result, seconds[batch] = tried(name, stock_trains, batch)
            outcomes[batch] = result is not None
        return outcomes[batch]

    low, high = 0, BEGIN[name]
    while fits(high):
        low, high = high, high + max(1, high // 16)
    while low == 0 and high > 1:
        middle = high - max(1, high // 16)
        low, high = (middle, high) if fits(middle) else (0, middle)
    largest = bisected(low, high, fits)
    fits(1)
    slope = (seconds[largest] - seconds[1]) / max(1, largest - 1)
    trials = trials_of_a_user(largest)
    ran_out = max(time for batch, time in seconds.items() if not outcomes[batch])
    waited = sum(ran_out if batch > largest else seconds[1] + slope * (batch - 1) for batch in trials)
    return {"batch": largest, "trials": trials, "seconds": waited, "measured_seconds": seconds}


def trials_of_a_user(largest: int) -> list[int]:
    """The batches that doubling from 1 and bisecting tries."""
    tried: list[int] = []

    def fits(batch: int) -> bool:
        tried.append(batch)
        return batch <= largest

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    bisected(low, high, fits)
    return tried


def bisected(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """Bisects to within a sixteenth; `low` fits and `high` does not."""
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def planned(name: str, batch_size: Any, allow: str) -> tuple[memfit.Plan, float]:
    """Plans, and says how long it took; in a process of its own, where layers have the names they train with."""
    model = compiled(name)
    begun = time.perf_counter()
    plan = memfit.plan(model, batch_size, memory=MEMORY[name], allow=allow)
    return plan, time.perf_counter() - begun


def memfit_largest(name: str, allow: str, stock: int) -> dict[str, Any]:
    """Plans the largest batch, or the wanted one where micro-batches leave it open, and trains it."""
    wanted = WANTED["near"] * stock
    try:
        plan, seconds = memfit.isolated(planned, name, "max" if allow == "exact" else wanted, allow)
        bounded = plan.micro_batch is None
        if not bounded:
            plan = replace(plan, batch_size=wanted)  # the same micro-batches, fewer of them
    except memfit.DoesNotFit as refusal:
        return {"batch": 0, "plan_seconds": float("nan"), "refused": str(refusal)}
    trained, trained_seconds = tried(name, memfit_trains, plan)
    return {
        "batch": plan.batch_size,
        "bounded": bounded,
        "times_stock": plan.batch_size / stock,
        "plan_seconds": seconds,
        "trained_seconds": trained_seconds,
        "plan": {**plan.to_json(), "segments": None, "levers": None},
        "segments": None if plan.segments is None else len(plan.segments.starts) + 1,
        "trained": trained,
    }


def said(figures: dict[str, Any]) -> str:
    """A batch with its multiple, and what became of it in the arena."""
    if figures["batch"] == 0:
        return "refused"
    text = f"{figures['batch']}{'' if figures['bounded'] else '+'} ({figures['times_stock']:.1f}x)"
    trained = figures["trained"]
    if trained is None:
        return f"{text} OOM"
    tightened = ", tightened" if trained["events"] else ""
    return f"{text} peak {trained['measured_over_predicted'] - 1:+.0%}{tightened}"


def main() -> None:
    """Measures the models named, or all of them."""
    figures: list[dict[str, Any]] = []
    rows: list[list[object]] = []
    for name in sys.argv[1:] or MEMORY:
        stock = stock_largest(name)
        found = {"exact": memfit_largest(name, "exact", stock["batch"])}
        # Where micro-batches are exact, there is nothing that near would add.
        near = (
            found["exact"] if not found["exact"]["bounded"] else memfit_largest(name, "near", stock["batch"])
        )
        found["near"] = near
        figures.append({"model": name, "memory": MEMORY[name], "stock": stock, **found})
        plan_seconds = found["exact"]["plan_seconds"]
        rows.append(
            [
                name,
                MEMORY[name],
                stock["batch"],
                said(found["exact"]),
                said(near),
                f"{len(stock['trials'])} in {stock['seconds']:.0f} s",
                f"{plan_seconds:.0f} s ({stock['seconds'] / plan_seconds:.0f}x)",
            ]
        )
        print(rows[-1], file=sys.stderr)
    head = ["model", "arena", "stock", "memfit, exact", "memfit, near", "trials", "plan"]
    print(table(rows, head=head, right=[2, 5, 6]))
    print(
        "Wanted: exact 3x, near 16x, found 10x faster, peaks within 8%. A + means that a larger batch would do."
    )
    if not sys.argv[1:]:
        print(f"Written to {write(NAME, figures).relative_to(Path.cwd())}")
    else:
        print(json.dumps(figures, default=str))


if __name__ == "__main__":
    main()
