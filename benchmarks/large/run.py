"""Large inputs, one at a time: a 3D U-Net trained in half of stock Keras's peak, and predicted with in an eighth.

Training: three steps of one volume of 96^3, stock Keras in a generous arena, memfit.fit in one of half of the peak
that was measured. Prediction: one volume of 256^3, stock in a generous arena, tiles="auto" in one of an eighth.
Peaks are those of TensorFlow's allocator, weights and inputs included.

    python benchmarks/large/run.py [training|prediction]
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import RESULTS, SMOKE, isolated, write
from memfit.tables import table

ARENA = "12GiB"
SIDE, LARGE_SIDE, FILTERS, DEPTH = (8, 16, 2, 1) if SMOKE else (96, 256, 4, 3)


def unet(side: int, depth: int) -> Any:
    """A 3D U-Net with BatchNormalization, two convolutions a level."""
    import keras

    layers = keras.layers

    def block(x: Any, filters: int) -> Any:
        for _ in range(2):
            x = layers.Conv3D(filters, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
        return x

    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((side, side, side, 1))
    skips = []
    for level in range(depth):
        skips.append(block(x, FILTERS * 2**level))
        x = layers.MaxPooling3D()(skips[-1])
    x = block(x, FILTERS * 2**depth)
    for level in reversed(range(depth)):
        x = layers.Concatenate()([skips[level], layers.UpSampling3D()(x)])
        x = block(x, FILTERS * 2**level)
    model = keras.Model(inputs, layers.Conv3D(1, 1, activation="sigmoid")(x))
    model.compile("adam", "binary_crossentropy", jit_compile=False)
    return model


def volumes(count: int, side: int) -> Any:
    """Some noise."""
    import numpy as np

    return np.random.default_rng(0).random((count, side, side, side, 1), dtype="float32")


def train(memory: str | None) -> dict[str, Any]:
    """Trains three steps, with stock Keras or in a memory; peak (MiB), seconds, and the weights."""
    import time

    import tensorflow as tf

    import memfit

    model, x = unet(SIDE, DEPTH), volumes(3, SIDE)
    y = (x > 0.5).astype("float32")
    plan = None if memory is None else memfit.plan(model, 1, memory, "exact", data=(x, y))
    tf.config.experimental.reset_memory_stats("CPU:0")
    begin = time.perf_counter()
    options: dict[str, Any] = {"batch_size": 1, "shuffle": False, "verbose": 0}
    history = model.fit(x, y, **options) if plan is None else memfit.fit(model, x, y, plan=plan, **options)
    # memfit's own meter resets TensorFlow's.
    measured = (
        tf.config.experimental.get_memory_info("CPU:0")["peak"] if plan is None else history.memory.measured
    )
    return {
        "peak": measured / 2**20,
        "seconds": time.perf_counter() - begin,
        "loss": history.history["loss"][0],
        "weights": [variable.numpy() for variable in model.variables],
        "plan": None if plan is None else str(plan.recipe),
        "events": [] if plan is None else list(map(str, history.memory.events)),
    }


def predict(tiles: str | None) -> dict[str, Any]:
    """Predicts one volume, with stock Keras or in tiles; peak (MiB), seconds, and the output."""
    import time

    import tensorflow as tf

    import memfit

    model, x = unet(LARGE_SIDE, 1), volumes(1, LARGE_SIDE)
    begin = time.perf_counter()
    events: list[Any] = []
    if tiles is None:
        output = model.predict(x, verbose=0)
    else:
        output = memfit.predict(model, x, tiles=tiles, verbose=0, events=events)
    return {
        "peak": tf.config.experimental.get_memory_info("CPU:0")["peak"] / 2**20,
        "seconds": time.perf_counter() - begin,
        "output": output,
        "events": list(map(str, events)),
    }


def compare_training() -> dict[str, Any]:
    """Trains in half of stock's peak."""
    import numpy as np

    stock = isolated(train, None, memory=ARENA)
    cap = f"{stock['peak'] / (1 if SMOKE else 2):.0f}MiB"
    ours = isolated(train, "1GiB" if SMOKE else cap, memory=cap)
    ours["arena"] = stock["peak"] / 2
    pairs = zip(stock["weights"], ours["weights"], strict=True)
    return {
        **describe(f"training, {SIDE}^3", stock, ours),
        "plan": ours["plan"],
        "losses": [stock["loss"], ours["loss"]],
        "largest_difference": float(max(np.abs(a - b).max() for a, b in pairs)),
    }


def compare_prediction() -> dict[str, Any]:
    """Predicts in an eighth of stock's peak."""
    import numpy as np

    stock = isolated(predict, None, memory=ARENA)
    cap = f"{stock['peak'] / (1 if SMOKE else 8):.0f}MiB"
    ours = isolated(predict, "auto", memory=cap)
    ours["arena"] = stock["peak"] / 8
    difference = float(np.abs(stock["output"] - ours["output"]).max())
    return {**describe(f"prediction, {LARGE_SIDE}^3", stock, ours), "largest_difference": difference}


def describe(what: str, stock: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """The figures of both."""
    return {
        "what": what,
        "arena_mib": round(ours["arena"], 1),
        "stock_peak_mib": round(stock["peak"], 1),
        "peak_mib": round(ours["peak"], 1),
        "share": round(ours["peak"] / stock["peak"], 3),
        "time": round(ours["seconds"] / stock["seconds"], 2),
        "events": ours["events"],
    }


def main() -> None:
    """Measures and prints; what is not asked for keeps its figures."""
    import json

    file = RESULTS / "large.json"
    parts = {"training": compare_training, "prediction": compare_prediction}
    for name in sys.argv[1:] or parts:
        found = parts[name]()
        known = json.loads(file.read_text())["figures"] if file.exists() else {}
        write("large", {**known, name: found})
        rows = [[key, value] for key, value in found.items() if key != "what"]
        print(found["what"], table(rows), sep="\n", flush=True)
    print(f"Written to {RESULTS / 'large.json'}")


if __name__ == "__main__":
    main()
