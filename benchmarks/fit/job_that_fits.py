"""A job that fits: what `memfit.fit` costs where no lever is needed, against `model.fit`.

Step time: stock, stock again and memfit train the same model in turn, in one process; the ratio is the median of
the rounds'.
First step: each in a fresh process; the difference. Most of the time goes into tracing: four times a network.

    python benchmarks/fit/job_that_fits.py
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import SMOKE, isolated, write
from memfit.tables import table

ARENA = "4GiB"
JOBS = [("tiny", 8)] if SMOKE else [("ViT", 8), ("MobileNetV2", 8)]
ROUNDS, STEPS = (1, 2) if SMOKE else (9, 16)


def fit(way: str, model: Any, x: Any, y: Any, batch: int, plan: Any = None) -> float:
    """Trains one epoch with stock Keras or memfit (planning included, if no plan is given); returns the seconds."""
    import time

    import memfit

    start = time.perf_counter()
    if way == "stock":
        model.fit(x, y, batch_size=batch, verbose=0)
    else:
        memfit.fit(model, x, y, batch_size=batch, verbose=0, plan=plan)
    return time.perf_counter() - start


def step_times(name: str, batch: int, rounds: int = ROUNDS, steps: int = STEPS) -> dict[str, float]:
    """Seconds of a step of stock's, and what memfit's takes of it, in turn."""
    import memfit
    from models import compiled, data
    from turns import take_turns

    model = compiled(name)
    x, y = data(model, batch * steps)
    made = memfit.plan(model, batch)
    ways = {way: partial(fit, way, model, x, y, batch, made) for way in ("stock", "memfit")}
    return take_turns(ways, rounds, steps)


def first_step(way: str, name: str, batch: int) -> float:
    """Seconds from the call to the end of the first step, tracing included."""
    from models import compiled, data

    model = compiled(name)
    x, y = data(model, batch)
    return fit(way, model, x, y, batch)


def main() -> None:
    """Measures and prints."""
    figures = []
    for name, batch in JOBS:
        times = isolated(step_times, name, batch, memory=ARENA)
        first = {way: isolated(first_step, way, name, batch, memory=ARENA) for way in ("stock", "memfit")}
        figures.append(
            {
                "model": name,
                "batch": batch,
                "stock_step_s": times["stock"],
                "step_ratio": times["memfit"],
                "stock_again": times["stock again"],
                "first_step_overhead_s": first["memfit"] - first["stock"],
                "stock_first_step_s": first["stock"],
            }
        )
    rows = [
        [
            f["model"],
            f["batch"],
            f"{f['stock_step_s']:.3f} s",
            f"{f['stock_again']:.3f}x",
            f"{f['step_ratio']:.3f}x",
            f"{f['stock_first_step_s']:.1f} s",
            f"{f['first_step_overhead_s']:+.1f} s",
        ]
        for f in figures
    ]
    head = ["job that fits", "batch", "stock step", "stock again", "memfit", "stock first step", "memfit"]
    print(table(rows, head=head, right=[1, 2, 3, 4, 5, 6]))
    print("Wanted: step at most 1.02x, first step at most +2.0 s.")
    print(f"Written to {write('fit-job-that-fits', figures)}")


if __name__ == "__main__":
    main()
