"""What `memfit.MemoryMonitor` costs: the same training with and without it, in turn, in one process.

The ratio of medians is what a user feels, but noise is as large as the bound: the ratio of stock to stock, measured
in the same turns, says how large. So the monitor's parts are timed directly as well: what its thread spends in a
second of training, and what the progress bar spends in a step.

    python benchmarks/monitor/cost.py
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import SMOKE, isolated, write
from memfit.tables import table

BOUND = 0.005
ROUNDS, STEPS, LOOKS = (1, 2, 2) if SMOKE else (18, 40, 2000)


def measured(verbose: int, rounds: int = ROUNDS, steps: int = STEPS) -> dict[str, float]:
    """Seconds a step with and without the monitor, and the monitor's own seconds."""
    import contextlib
    import os
    import statistics
    import time

    import keras
    import numpy as np

    from memfit import MemoryMonitor
    from memfit.training.monitoring.sampling import Sampler

    blocks = [keras.layers.Conv2D(16, 3, padding="same", activation="relu") for _ in range(4)]
    pooled = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((32, 32, 3)), *blocks, *pooled])
    model.compile("adam", "mse")
    x, y = np.ones((16 * steps, 32, 32, 3), "float32"), np.ones((16 * steps, 10), "float32")

    def epoch(callbacks: list[MemoryMonitor]) -> float:
        # Only whole epochs count: the start of `fit` is the same for both.
        times: list[float] = []
        clock = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: times.append(time.perf_counter()),
            on_epoch_end=lambda epoch, logs: times.append(time.perf_counter()),
        )
        model.fit(x, y, batch_size=16, verbose=verbose, callbacks=[clock, *callbacks])
        return (times[1] - times[0]) / steps

    ways = ["stock", "stock again", "monitored"]
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # noqa: PTH123
        epoch([])
        for number in range(rounds):
            for way in ways[number % 3 :] + ways[: number % 3]:
                seconds[way].append(epoch([MemoryMonitor()] if way == "monitored" else []))
    monitor = MemoryMonitor()
    monitor.set_params({"verbose": verbose, "epochs": 1, "steps": steps})
    monitor.on_train_begin()
    monitor.on_epoch_begin(0)
    sampler = Sampler("CPU:0")
    return {
        "stock_step_s": statistics.median(seconds["stock"]),
        "stock_again_step_s": statistics.median(seconds["stock again"]),
        "monitored_step_s": statistics.median(seconds["monitored"]),
        "look_s": _mean(sampler.look),
        "figures_s": _mean(lambda: monitor._with_figures({"loss": 0.5})) if verbose == 1 else 0.0,
    }


def _mean(function: object, times: int = LOOKS) -> float:
    import time

    begun = time.perf_counter()
    for _ in range(times):
        function()  # type: ignore[operator]
    return (time.perf_counter() - begun) / times


def main() -> None:
    """Measures and prints."""
    figures = []
    for verbose in (0, 1):
        seen = isolated(measured, verbose, memory="1GiB")
        own = 10 * seen["look_s"] + seen["figures_s"] / seen["stock_step_s"]
        ratio = seen["monitored_step_s"] / seen["stock_step_s"]
        noise = seen["stock_again_step_s"] / seen["stock_step_s"]
        figures.append({"verbose": verbose, **seen, "ratio": ratio, "noise": noise, "own_share_of_time": own})
    rows = [
        [
            f["verbose"],
            f"{1e3 * f['stock_step_s']:.1f} ms",
            f"{f['noise']:.3f}x",
            f"{f['ratio']:.3f}x",
            f"{1e6 * f['look_s']:.0f} us",
            f"{1e6 * f['figures_s']:.1f} us",
            f"{f['own_share_of_time']:.3%}",
        ]
        for f in figures
    ]
    head = [
        "verbose",
        "stock step",
        "stock again",
        "monitored",
        "one look",
        "progress bar",
        "own share of time",
    ]
    print(table(rows, head=head, right=[0, 1, 2, 3, 4, 5, 6]))
    print(f"Wanted: at most {BOUND:.1%} of the step time.")
    print(f"Written to {write('monitor', figures)}")


if __name__ == "__main__":
    main()
