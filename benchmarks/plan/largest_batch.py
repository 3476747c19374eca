"""The largest batch that trains in an arena: stock Keras by doubling and bisecting trial runs, memfit by its plan.

Every trial is three steps in a fresh process in the arena. What memfit plans is trained there too, so that a batch
counts only if it really runs. Names of models on the command line choose some of them.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import memfit
from machine import write
from memfit.tables import table
from models import compiled, data

MEMORY = {"MobileNetV2": "512MiB", "U-Net": "512MiB", "ResNet50": "1GiB", "VGG19": "1536MiB"}
STEPS = 3


def stock_trains(name: str, batch: int) -> None:
    """Trains three steps as stock Keras does; runs in the arena."""
    model = compiled(name)
    model.fit(*data(model, STEPS * batch), batch_size=batch, verbose=0)


def planned(name: str, allow: str) -> tuple[memfit.Plan, float]:
    """Plans the largest batch and returns the plan and the seconds it took."""
    model = compiled(name)
    begun = time.perf_counter()
    return memfit.plan(model, "max", memory=MEMORY[name], allow=allow), time.perf_counter() - begun


def memfit_trains(name: str, plan: memfit.Plan) -> float:
    """Trains three steps with a plan; runs in the arena. Returns the measured peak over the predicted one."""
    model = compiled(name)
    history = memfit.fit(model, *data(model, STEPS * plan.batch_size), plan=plan, verbose=0)
    return history.memory.measured / history.memory.predicted


def works(name: str, function: Callable[..., Any], *args: Any) -> Any:
    """Returns what a trial in the arena gives, or None where it runs out of memory or dies of it."""
    import tensorflow as tf

    try:
        result = memfit.isolated(function, name, *args, memory=MEMORY[name])
    except (tf.errors.ResourceExhaustedError, memfit.ProcessDied):
        return None
    return True if result is None else result


def by_trials(name: str) -> tuple[int, float]:
    """Doubles, then bisects to within a sixteenth; returns stock's largest batch and the seconds it took."""
    begun = time.perf_counter()
    low, high = 0, 1
    while works(name, stock_trains, high):
        low, high = high, 2 * high
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        low, high = (middle, high) if works(name, stock_trains, middle) else (low, middle)
    return low, time.perf_counter() - begun


def main() -> None:
    """Measures the models named, or all of them."""
    figures: list[dict[str, Any]] = []
    for name in sys.argv[1:] or MEMORY:
        stock, seconds = by_trials(name)
        row: dict[str, Any] = {
            "model": name,
            "memory": MEMORY[name],
            "stock": stock,
            "stock_seconds": seconds,
        }
        for allow in ("exact", "near"):
            plan, seconds = planned(name, allow)
            ratio = works(name, memfit_trains, plan)
            row[allow] = {
                "batch": plan.batch_size,
                "ratio": plan.batch_size / stock,
                "plan_seconds": seconds,
                "trains": ratio is not None,
                "measured_over_predicted": ratio,
            }
        figures.append(row)
        print(row, file=sys.stderr)
    rows = [
        [
            row["model"],
            row["memory"],
            row["stock"],
            *(
                f"{row[a]['batch']} ({row[a]['ratio']:.1f}x){'' if row[a]['trains'] else ' OOM'}"
                for a in ("exact", "near")
            ),
            f"{row['stock_seconds']:.0f} s",
            f"{row['exact']['plan_seconds']:.0f} s",
        ]
        for row in figures
    ]
    print(
        table(
            rows, head=["model", "arena", "stock", "exact", "near", "trials", "plan"], right=[2, 3, 4, 5, 6]
        )
    )
    print("written to", write("largest_batch", figures))


if __name__ == "__main__":
    main()
