"""Activation memory and step time of rematerialised steps, as ratios to stock Keras in the same process.

Activation memory is the peak of a step minus what is in use between steps, in the arena: it contains gradients and
the kernels' workspaces, in both. Each process trains one model. Peaks are the largest of some like steps in a row,
as in a training; times are of stock and rematerialised steps in turn, so that whatever slows the machine down slows
both. The arena is one region, as a GPU's memory is without memory growth.

Usage: bench.py [NETWORK ...] (all of them without a name; those named replace their rows in the results)
"""

import json
import math
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from networks import BATCHES

from machine import RESULTS, SMOKE, isolated, write
from memfit.tables import table

ROUNDS = 1 if SMOKE else 3
# Parts of stock's activation memory that choices are measured for.
RATIOS = (0.9,) if SMOKE else (0.3, 0.24, 0.225, 0.21, 0.195)
# Networks that do not look across the batch are exact in micro-batches too: samples in each.
MICRO_BATCHES: dict[str, tuple[int, ...]] = {"ViT": (32, 16, 8)}


class Training:
    """One network with a batch, and steps of it."""

    def __init__(self, name: str, batch: int) -> None:
        import keras
        import numpy as np
        import tensorflow as tf
        from networks import build

        keras.utils.set_random_seed(1)
        self.model = build(name)
        generator = np.random.default_rng(1)
        self.x = tf.constant(generator.normal(size=(batch, 128, 128, 3)).astype("float32"))
        self.y = tf.constant(generator.integers(0, 5, size=(batch, *self.model.output_shape[1:-1])))
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.optimizer = keras.optimizers.SGD(1e-4)
        self.optimizer.build(self.model.trainable_variables)
        self.model.compile(self.optimizer, self.loss, jit_compile=False)

    def build_step(self, call: Any) -> Any:
        """Returns a training step that calls the model so."""
        import tensorflow as tf

        @tf.function
        def step() -> Any:
            with tf.GradientTape() as tape:
                loss = self.loss(self.y, call(self.x, training=True))
            weights = self.model.trainable_variables
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            return loss

        return step

    def build_rematerialised_step(self, segments: Any) -> Any:
        """Returns a step with segments, as `memfit.fit` runs those."""
        from memfit.steps.rematerialisation import rematerialise, run_one_by_one

        step = self.build_step(rematerialise(self.model, segments))

        def run() -> Any:
            with run_one_by_one():
                return step()

        return run

    def build_micro_batched_step(self, size: int) -> Any:
        """Returns a step in micro-batches."""
        import tensorflow as tf

        from memfit.steps.micro_batches.step import micro_batched_train_step

        inner = micro_batched_train_step(self.model, size, lambda x: self.model(x, training=True))
        return tf.function(lambda: inner((self.x, self.y))["loss"])


def pick_choices(choices: Any) -> list[Any]:
    """Picks for each ratio the fastest choice that fits; where none does, the smallest there is."""
    picked = {}
    for ratio in RATIOS:
        fitting = [choice for choice in choices if choice.activation_bytes <= ratio * choice.stock_bytes]
        choice = fitting[0] if fitting else choices[-1]
        picked[choice.activation_bytes] = choice
    return list(picked.values())


def measure_peak(step: Any) -> int:
    """Measures the most that some steps in a row take above what is in use between them."""
    import tensorflow as tf

    memory = tf.config.experimental
    float(step())  # traces
    peaks = []
    for _ in range(ROUNDS):
        memory.reset_memory_stats("CPU:0")
        rest = memory.get_memory_info("CPU:0")["current"]
        float(step())
        peaks.append(memory.get_memory_info("CPU:0")["peak"] - rest)
    return int(max(peaks))


def measure_times(steps: Any) -> list[float]:
    """Measures the median time of each step, all in turn."""
    times: list[list[float]] = [[] for _ in steps]
    for _ in range(ROUNDS):
        for number, step in enumerate(steps):
            began = time.perf_counter()
            float(step())
            times[number].append(time.perf_counter() - began)
    return [median(of_step) for of_step in times]


def measure(name: str, batch: int, folder: str) -> list[dict[str, Any]]:
    """Measures one model in this process: stock, and every choice that there is for the ratios."""
    sys.path.insert(0, folder)
    import tensorflow as tf

    from memfit.steps.rematerialisation import find_choices

    # One region, not touched, and free again at once.
    region = tf.raw_ops.Empty(shape=[1 if SMOKE else 6, 2**30], dtype=tf.uint8, init=False)
    del region
    training = Training(name, batch)
    model = training.model
    began = time.perf_counter()
    choices = find_choices(model, batch)
    seconds = time.perf_counter() - began
    forward = tf.function(lambda: tf.reduce_mean(model(training.x, training=True)))
    rows: list[tuple[str, Any, Any]] = [
        ("stock", training.build_step(model), None),
        ("forward only", forward, None),
    ]
    for choice in pick_choices(choices):
        rows.append(("rematerialised", training.build_rematerialised_step(choice), choice))
    for size in MICRO_BATCHES.get(name, ()):
        rows.append((f"micro-batches of {size}", training.build_micro_batched_step(size), None))
    # The accumulators of micro-batches stay between steps.
    accumulators = 4 * sum(math.prod(weight.shape) for weight in model.trainable_variables)
    peaks = [
        measure_peak(step) + (accumulators if label.startswith("micro") else 0) for label, step, _ in rows
    ]
    times = measure_times([step for _, step, _ in rows])
    return [
        {
            "network": name,
            "batch": batch,
            "step": label,
            "activations_mib": round(peak / 2**20),
            "divided_by": round(peaks[0] / peak, 2),
            "time_ratio": round(step_time / times[0], 3),
            "predicted_mib": round(choice.activation_bytes / 2**20) if choice else None,
            "predicted_time_ratio": round(1 + choice.recomputed, 3) if choice else None,
            "seconds_a_step": round(step_time, 3),
            "seconds_to_choose": round(seconds, 1) if choice else None,
        }
        for (label, _, choice), peak, step_time in zip(rows, peaks, times, strict=True)
    ]


def main() -> None:
    names = sys.argv[1:] or list(BATCHES)
    file = RESULTS / "remat.json"
    before = json.loads(file.read_text())["figures"] if file.exists() else []
    rows = [row for row in before if row["network"] not in names]
    for name in names:
        found = isolated(measure, name, BATCHES[name], str(Path(__file__).parent), memory="8GiB")
        print(
            table([list(row.values()) for row in found], head=list(found[0]), right=range(3, 10)), flush=True
        )
        rows += found
        print(write("remat", rows))


if __name__ == "__main__":
    main()
