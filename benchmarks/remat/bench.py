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

from machine import RESULTS, write
from memfit.budgets.isolation import isolated
from memfit.tables import table

ROUNDS = 3
# Parts of stock's activation memory that choices are measured for.
RATIOS = (0.3, 0.24, 0.225, 0.21, 0.195)
# Networks that do not look across the batch are exact in micro-batches too: samples in each.
MICRO_BATCHES: dict[str, tuple[int, ...]] = {"ViT": (32, 16, 8)}


def measure(name: str, batch: int, folder: str) -> list[dict[str, Any]]:
    """Measures one model in this process: stock, and every choice that there is for the ratios."""
    sys.path.insert(0, folder)
    import keras
    import numpy as np
    import tensorflow as tf
    from networks import build

    from memfit.steps.micro_batches.step import micro_batched_train_step
    from memfit.steps.rematerialisation import find_choices, rematerialise, run_one_by_one

    # One region, not touched, and free again at once.
    del_at_once = tf.raw_ops.Empty(shape=[6, 2**30], dtype=tf.uint8, init=False)
    del del_at_once
    keras.utils.set_random_seed(1)
    model = build(name)
    generator = np.random.default_rng(1)
    x = tf.constant(generator.normal(size=(batch, 128, 128, 3)).astype("float32"))
    y = tf.constant(generator.integers(0, 5, size=(batch, *model.output_shape[1:-1])))
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(1e-4)
    optimizer.build(model.trainable_variables)

    def step_with(call: Any) -> Any:
        @tf.function
        def step() -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(y, call(x, training=True))
            weights = model.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)
            return loss

        return step

    def as_fitted(step: Any) -> Any:
        """The step as `memfit.fit` runs those with segments."""

        def run() -> Any:
            with run_one_by_one():
                return step()

        return run

    began = time.perf_counter()
    choices = find_choices(model, batch)
    seconds = time.perf_counter() - began
    picked = {}
    for ratio in RATIOS:
        # Of the choices that fit, the fastest; where none does, the smallest there is.
        fitting = [choice for choice in choices if choice.activation_bytes <= ratio * choice.stock_bytes]
        choice = fitting[0] if fitting else choices[-1]
        picked[choice.activation_bytes] = choice
    forward = tf.function(lambda: tf.reduce_mean(model(x, training=True)))
    runs: list[tuple[Any, Any]] = [(None, step_with(model)), (None, forward)]
    runs += [(choice, as_fitted(step_with(rematerialise(model, choice)))) for choice in picked.values()]
    labels = ["stock", "forward only", *("rematerialised" for _ in picked)]
    added = [0 for _ in runs]
    weights = sum(math.prod(weight.shape) for weight in model.trainable_variables)
    model.compile(optimizer, loss_of, jit_compile=False)
    for size in MICRO_BATCHES.get(name, ()):
        inner = micro_batched_train_step(model, size, lambda x: model(x, training=True))
        runs.append((None, tf.function(lambda inner=inner: inner((x, y))["loss"])))
        labels.append(f"micro-batches of {size}")
        added.append(4 * weights)  # the accumulators stay between steps
    times: list[list[float]] = [[] for _ in runs]
    peaks: list[list[int]] = [[] for _ in runs]
    memory = tf.config.experimental
    for place, (_, step) in enumerate(runs):
        float(step())  # traces
        for _ in range(ROUNDS):
            memory.reset_memory_stats("CPU:0")
            rest = memory.get_memory_info("CPU:0")["current"]
            float(step())
            peaks[place].append(memory.get_memory_info("CPU:0")["peak"] - rest + added[place])
    for _ in range(ROUNDS):
        for place, (_, step) in enumerate(runs):
            began = time.perf_counter()
            float(step())
            times[place].append(time.perf_counter() - began)
    return [
        {
            "network": name,
            "batch": batch,
            "step": labels[place],
            "activations_mib": round(max(peaks[place]) / 2**20),
            "divided_by": round(max(peaks[0]) / max(peaks[place]), 2),
            "time_ratio": round(median(times[place]) / median(times[0]), 3),
            "predicted_mib": round(choice.activation_bytes / 2**20) if choice else None,
            "predicted_time_ratio": round(1 + choice.recomputed, 3) if choice else None,
            "seconds_a_step": round(median(times[place]), 3),
            "seconds_to_choose": round(seconds, 1) if choice else None,
        }
        for place, (choice, _) in enumerate(runs)
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
