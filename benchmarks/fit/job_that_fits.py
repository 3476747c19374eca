"""A job that fits: what `memfit.fit` costs where no lever is needed, against `model.fit`.

Step time: stock and memfit train the same model in turn, in one process; the ratio is the median of the rounds'.
First step: each in a fresh process; the difference. Most of the time goes into tracing: four times a network.

    python benchmarks/fit/job_that_fits.py
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import SMOKE, isolated, write
from memfit.tables import table

ARENA = "4GiB"
JOBS = [("tiny", 8)] if SMOKE else [("ViT", 8), ("MobileNetV2", 8)]
ROUNDS = 1 if SMOKE else 9


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


def step_times(name: str, batch: int, rounds: int = ROUNDS, steps: int = 4) -> dict[str, float]:
    """Seconds per step, the median of some rounds in turn."""
    import statistics

    import memfit
    from models import compiled, data

    model = compiled(name)
    x, y = data(model, batch * steps)
    made = memfit.plan(model, batch)
    for way in ("stock", "memfit"):
        fit(way, model, x, y, batch, made)  # traces
    seconds: dict[str, list[float]] = {"stock": [], "memfit": []}
    for number in range(rounds):
        for way in ("stock", "memfit") if number % 2 else ("memfit", "stock"):
            seconds[way].append(fit(way, model, x, y, batch, made) / steps)
    pairs = zip(seconds["stock"], seconds["memfit"], strict=True)
    return {
        "stock": statistics.median(seconds["stock"]),
        "memfit": statistics.median(seconds["memfit"]),
        "ratio": statistics.median(ours / stock for stock, ours in pairs),
    }


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
                "memfit_step_s": times["memfit"],
                "step_ratio": times["ratio"],
                "first_step_overhead_s": first["memfit"] - first["stock"],
                "stock_first_step_s": first["stock"],
            }
        )
    rows = [
        [
            f["model"],
            f["batch"],
            f"{f['stock_step_s']:.3f} s",
            f"{f['step_ratio']:.3f}x",
            f"{f['stock_first_step_s']:.1f} s",
            f"{f['first_step_overhead_s']:+.1f} s",
        ]
        for f in figures
    ]
    head = ["job that fits", "batch", "stock step", "memfit", "stock first step", "memfit"]
    print(table(rows, head=head, right=[1, 2, 3, 4, 5]))
    print("Wanted: step at most 1.02x, first step at most +2.0 s.")
    print(f"Written to {write('fit-job-that-fits', figures)}")


if __name__ == "__main__":
    main()
