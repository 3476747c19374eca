"""What the guard costs a job that fits: step time, first step and peak memory, against `model.fit`.

Step time: stock, stock again and the guard train the same model in turn, in one process; the ratio is the median of
the rounds'.
First step and peak: each in a fresh process.

    python benchmarks/guard/cost.py
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import SMOKE, isolated, write
from memfit.tables import table

ARENA = "4GiB"
# The steps of VGG19 are long, and so of no interest for their time; most of its memory is weights and gradients.
JOBS = [("ViT", 8, True), ("MobileNetV2", 8, True), ("VGG19", 4, False)]
ROUNDS, STEPS = 9, 16
if SMOKE:
    JOBS, ROUNDS, STEPS = [("tiny", 8, True)], 1, 2


def fit(way: str, model: Any, x: Any, y: Any, batch: int) -> float:
    """Trains one epoch with stock Keras or under the guard, without planning; returns the seconds."""
    import time

    from memfit.planning.fidelity import Fidelity
    from memfit.training.guard.events import Journal
    from memfit.training.guard.guarding import guarded_training

    start = time.perf_counter()
    if way == "stock":
        model.fit(x, y, batch_size=batch, verbose=0)
    else:
        with guarded_training(model, None, Fidelity.EXACT, Journal()):
            model.fit(x, y, batch_size=batch, verbose=0)
    return time.perf_counter() - start


def step_times(name: str, batch: int, rounds: int = ROUNDS, steps: int = STEPS) -> dict[str, float]:
    """Seconds of a step of stock's, and what the guarded step takes of it, in turn."""
    from models import compiled, data
    from turns import take_turns

    model = compiled(name)
    x, y = data(model, batch * steps)
    ways = {way: partial(fit, way, model, x, y, batch) for way in ("stock", "guard")}
    return take_turns(ways, rounds, steps)


def first_step_and_peak(way: str, name: str, batch: int) -> tuple[float, int]:
    """Seconds from the call to the end of the first step, tracing included, and the peak of three more."""
    import tensorflow as tf

    from models import compiled, data

    model = compiled(name)
    x, y = data(model, batch * 4)
    seconds = fit(way, model, x[:batch], y[:batch], batch)
    tf.config.experimental.reset_memory_stats("CPU:0")
    fit(way, model, x[batch:], y[batch:], batch)
    return seconds, int(tf.config.experimental.get_memory_info("CPU:0")["peak"])


def main() -> None:
    """Measures and prints."""
    figures = []
    for name, batch, timed in JOBS:
        times = isolated(step_times, name, batch, memory=ARENA) if timed else None
        first = {
            way: isolated(first_step_and_peak, way, name, batch, memory=ARENA) for way in ("stock", "guard")
        }
        figures.append(
            {
                "model": name,
                "batch": batch,
                "stock_step_s": times and times["stock"],
                "step_ratio": times and times["guard"],
                "stock_again": times and times["stock again"],
                "stock_first_step_s": first["stock"][0],
                "first_step_overhead_s": first["guard"][0] - first["stock"][0],
                "stock_peak_mib": first["stock"][1] / 2**20,
                "peak_ratio": first["guard"][1] / first["stock"][1],
            }
        )
    rows = [
        [
            f["model"],
            f["batch"],
            f"{f['stock_step_s'] * 1000:.0f} ms" if f["stock_step_s"] else "",
            f"{f['stock_again']:.3f}x" if f["stock_again"] else "",
            f"{f['step_ratio']:.3f}x" if f["step_ratio"] else "",
            f"{f['stock_first_step_s']:.1f} s",
            f"{f['first_step_overhead_s']:+.1f} s",
            f"{f['stock_peak_mib']:.0f} MiB",
            f"{f['peak_ratio']:.2f}x",
        ]
        for f in figures
    ]
    head = ["job", "batch", "step", "stock again", "guarded", "first step", "guarded", "peak", "guarded"]
    print(table(rows, head=head, right=[1, 2, 3, 4, 5, 6, 7, 8]))
    print("Wanted: step at most 1.02x, first step at most +2.0 s.")
    print(f"Written to {write('guard', figures)}")


if __name__ == "__main__":
    main()
