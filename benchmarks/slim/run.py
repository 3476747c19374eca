"""Variants of seven networks: the predicted peak of each, recorded and from shapes, against the measured one.

Usage: run.py [NETWORK ...] (without a name, all; rows that are in the results already are left: it goes on)

`run.py table [NETWORK] [SIZE]` times a whole table as users get it, ResNet50 at 128x128 unless told.
"""

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import RESULTS, SMOKE, isolated, write
from memfit.tables import table
from slim.networks import BATCH, NAMES, build, compile_network, data

FOLDER = str(Path(__file__).parents[1])
MIB = 2**20
STEPS = 5
MEASUREMENTS = (
    1 if SMOKE else 3
)  # each in a process of its own: what was in an arena before changes its peaks
ORIGINAL = "original"
# Networks with random weights have no structure: low rank has to lose half of the energy to save anything.
AMOUNTS = {"low-rank": 0.5}
VARIANTS = ("separable", "narrow", "low-rank", "smaller input", "mixed precision", "frozen", "LoRA")


def predict(network: str, variant: str, folder: str) -> dict[str, Any]:
    """Builds a variant, estimates it, and writes down its architecture."""
    sys.path.insert(0, folder)
    from dataclasses import asdict

    import memfit
    from memfit.estimation.recording.sending import packed
    from memfit.slimming.shapes import read_shapes

    model = build(network)
    if variant != ORIGINAL:
        try:
            model = memfit.slim(model, variant, AMOUNTS.get(variant))
        except memfit.InvalidInput as refusal:
            return {"refused": str(refusal)}
    began = time.perf_counter()
    estimate = memfit.estimate(model, BATCH)
    return {
        "predicted": int(estimate.peak),
        "seconds": time.perf_counter() - began,
        "parts": {kind: int(size) for kind, size in estimate.breakdown.items()},
        "shapes": asdict(read_shapes(model)),
        "architecture": {k: v for k, v in json.loads(model.to_json()).items() if k != "compile_config"},
        "trained": [bool(weight.trainable) for weight in model.weights],
        "copy": packed(model),
    }


def measure(network: str, architecture: dict[str, Any], folder: str, trained: list[bool], copy: bytes) -> int:
    """Trains a variant for some steps in an arena in which nothing was before; returns the peak.

    It is built from its architecture: a model that is loaded from a file with its weights leaves other gaps in an
    arena than one that is built, and peaks up to a tenth higher (a frozen VGG16: 638 MiB for 584). Keras 3.15 makes
    the layers inside of a frozen MultiHeadAttention trainable again, and knows nothing of adapters inside of one:
    then the copy is trained that the recorder gets.
    """
    sys.path.insert(0, folder)
    import keras
    import tensorflow as tf

    from memfit.estimation.recording.sending import unpacked

    model = keras.models.model_from_json(json.dumps(architecture))
    if len(model.weights) != len(trained):
        model, _ = unpacked(copy)
    for weight, is_trained in zip(model.weights, trained, strict=True):
        weight.trainable = is_trained
    compile_network(network, model)
    x, y = data(model, BATCH)
    for _ in range(STEPS):
        model.train_on_batch(x, y)
    return int(tf.config.experimental.get_memory_info("CPU:0")["peak"])


def make_row(network: str, variant: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Predicts and measures one variant of one network."""
    row: dict[str, Any] = {"network": network, "variant": variant}
    found = isolated(predict, network, variant, FOLDER, memory="12GiB")
    if "refused" in found:
        return row | found
    sent = found["architecture"], FOLDER, found["trained"], found["copy"]
    peaks = sorted(isolated(measure, network, *sent, memory="12GiB") for _ in range(MEASUREMENTS))
    peak = median(peaks)
    row |= {
        "predicted_mib": round(found["predicted"] / MIB, 1),
        "measured_mib": round(peak / MIB, 1),
        "spread": round(peaks[-1] / peaks[0] - 1, 3),
        "error": round(found["predicted"] / peak - 1, 3),
        "seconds": round(found["seconds"], 1),
    }
    original = next(
        (each for each in rows if (each["network"], each["variant"]) == (network, ORIGINAL)), None
    )
    if original is None:
        return row | {"parts": found["parts"], "shapes": found["shapes"]}
    sketched = sketch(original, found["shapes"])
    if sketched:
        row |= {
            "from_shapes_mib": round(sketched / MIB, 1),
            "from_shapes_error": round(sketched / peak - 1, 3),
        }
    return row


def sketch(original: dict[str, Any], shapes: dict[str, Any]) -> int:
    """Predicts a variant's peak from shapes, as a table does where the time for recordings is up."""
    from memfit.slimming.peaks import scale
    from memfit.slimming.shapes import Shapes

    before, after = Shapes(**original["shapes"]), Shapes(**shapes)
    return scale(original["parts"], after, before) if after.activations and before.activations else 0


def time_table(network: str, size: int) -> dict[str, Any]:
    """Makes a whole table as users get it; returns its seconds, of the clock and of all processors."""
    import os

    import memfit
    import models

    model = models.MODELS[network](size)
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    began, load = time.perf_counter(), os.getloadavg()[0]
    made = memfit.slim(model, batch_size=BATCH, memory="1GiB", data=models.data(model, 32))
    figures = [row.peak for row in made if row.peak is not None]
    return {
        "network": network,
        "size": size,
        "seconds": round(time.perf_counter() - began, 1),
        "load_before": round(load, 1),
        "variants": len(figures),
        "recorded": sum(not figure.is_rough for figure in figures),
    }


def summarise(rows: list[dict[str, Any]]) -> str:
    """Says in a line each how good the predictions are."""
    made = [row for row in rows if "error" in row]
    errors = sorted(abs(row["error"]) for row in made)
    rough = sorted(abs(row["from_shapes_error"]) for row in made if "from_shapes_error" in row)
    lines = [
        ["variants", len(made)],
        ["recorded: error, median", f"{median(errors):.1%}"],
        ["recorded: error, largest", f"{errors[-1]:.1%}"],
        ["recorded: within 5%", sum(error <= 0.05 for error in errors)],
        ["measured: largest spread", f"{max(row.get('spread', 0.0) for row in made):.1%}"],
    ]
    if rough:
        lines += [
            ["from shapes: error, median", f"{median(rough):.1%}"],
            ["from shapes: error, largest", f"{rough[-1]:.1%}"],
        ]
    return table(lines)


def main() -> None:
    """Measures what is missing, and writes the results after each row."""
    if sys.argv[1:2] == ["table"]:
        network, size = (*sys.argv[2:], "ResNet50", 128)[:2] if len(sys.argv) < 4 else sys.argv[2:4]
        timed = time_table(network, int(size))
        print(json.dumps(timed))
        write("slim-table", timed)
        return
    file = RESULTS / "slim.json"
    rows = json.loads(file.read_text())["figures"] if file.exists() else []
    for network in sys.argv[1:] or (["tiny"] if SMOKE else NAMES):
        for variant in (ORIGINAL, *(VARIANTS[:1] if SMOKE else VARIANTS)):
            if any((row["network"], row["variant"]) == (network, variant) for row in rows):
                continue
            rows.append(make_row(network, variant, rows))
            shown = {key: value for key, value in rows[-1].items() if key not in ("parts", "shapes")}
            print(json.dumps(shown), flush=True)
            write("slim", rows)
    print(summarise(rows))


if __name__ == "__main__":
    main()
