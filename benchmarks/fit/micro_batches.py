"""Micro-batches: peak and time of a step cut into parts, against stock Keras's step at the same batch.

Each in a fresh process, in the same arena, with the same data; the peak is the largest, the time the smallest of
some steps after the first.

    python benchmarks/fit/micro_batches.py
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import SMOKE, isolated, write
from memfit.tables import table

ARENA = "8GiB"
JOBS = [
    ("MobileNetV2", 32, (8,)),
    ("ResNet50", 16, (4,)),
    ("ViT", 32, (16, 8)),
    ("VGG19", 16, (4,)),
]
if SMOKE:
    JOBS = [("tiny", 16, (8,))]


def measure(name: str, batch: int, part: int | None) -> dict[str, float]:
    """Peak (MiB) and time (s) of a step, whole or in parts of so many samples."""
    import time

    import tensorflow as tf

    from memfit.steps.recipe import Recipe
    from memfit.steps.train_step import build
    from models import compiled, data

    model = compiled(name)
    batch_data = tuple(tf.constant(array) for array in data(model, batch))
    if part is None:
        model.make_train_function()
        step = lambda: model.train_function(iter([batch_data]))  # noqa: E731
    else:
        built = build(model, Recipe(micro_batch=part))
        step = lambda: built.run(batch_data)  # noqa: E731
    memory = tf.config.experimental
    begin = time.perf_counter()
    step()
    first = time.perf_counter() - begin
    peaks, seconds = [], []
    for _ in range(5):
        memory.reset_memory_stats("CPU:0")
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
        peaks.append(memory.get_memory_info("CPU:0")["peak"] / 2**20)
    resident = memory.get_memory_info("CPU:0")["current"] / 2**20
    return {"peak": max(peaks), "seconds": min(seconds), "first": first, "resident": resident}


def main() -> None:
    """Measures and prints."""
    figures, rows = [], []
    for name, batch, parts in JOBS:
        stock = isolated(measure, name, batch, None, memory=ARENA)
        for part in (None, *parts):
            found = stock if part is None else isolated(measure, name, batch, part, memory=ARENA)
            figures.append({"model": name, "batch": batch, "micro_batch": part, **found})
            rows.append(
                [
                    name,
                    batch,
                    "stock" if part is None else part,
                    f"{found['peak']:.0f} MiB",
                    f"{found['peak'] / stock['peak']:.2f}x",
                    f"{found['seconds']:.2f} s",
                    f"{found['seconds'] / stock['seconds']:.2f}x",
                    f"{found['first']:.1f} s",
                ]
            )
    head = ["model", "batch", "micro-batch", "peak", "", "step", "", "first step"]
    print(table(rows, head=head, right=[1, 2, 3, 4, 5, 6, 7]))
    print(f"Written to {write('fit-micro-batches', figures)}")


if __name__ == "__main__":
    main()
