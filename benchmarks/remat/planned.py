"""Planned trainings in half the memory that stock Keras needs: predicted and measured peaks, exact levers only.

Usage: planned.py [NETWORK ...] (all of them without a name; those named replace their rows in the results)
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from networks import BATCHES, build

from machine import RESULTS, SMOKE, isolated, write
from memfit.sizes import Size
from memfit.tables import table

STEPS = 1 if SMOKE else 4
# Of what stock Keras needs.
PART = 20.0 if SMOKE else 0.5


def job(name: str) -> tuple[Any, Any, Any]:
    """A compiled network, and arrays for some steps."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(1)
    model = build(name)
    model.compile(
        keras.optimizers.SGD(1e-3, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    generator = np.random.default_rng(1)
    samples = STEPS * BATCHES[name]
    x = generator.normal(size=(samples, 128, 128, 3)).astype("float32")
    return model, x, generator.integers(0, 5, size=(samples, *model.output_shape[1:-1]))


def needed(name: str) -> int:
    """What stock Keras needs for the job: the step, and the arrays."""
    import memfit

    model, x, y = job(name)
    return int(memfit.estimate(model, BATCHES[name], data=(x, y)).prediction.needed) + x.nbytes + y.nbytes


def trained(name: str, memory: int, folder: str) -> dict[str, Any]:
    """Plans and trains in this process, which is an arena of that memory."""
    sys.path.insert(0, folder)
    import memfit

    model, x, y = job(name)
    began = time.perf_counter()
    plan = memfit.plan(model, BATCHES[name], memory, "exact", data=(x, y))
    seconds = time.perf_counter() - began
    run = memfit.fit(model, x, y, batch_size=BATCHES[name], verbose=0, plan=plan).memory
    return {
        "predicted_mib": round(run.predicted / 2**20),
        "measured_mib": round(run.measured / 2**20),
        "error": round(run.predicted / run.measured - 1, 3),
        "out_of_memory": len(run.events),
        "levers": " ".join(lever.name for lever in plan.levers if lever.used),
        "predicted_time_ratio": round(plan.time, 3),
        "seconds_to_plan": round(seconds, 1),
    }


def main() -> None:
    names = sys.argv[1:] or list(BATCHES)
    file = RESULTS / "remat-planned.json"
    before = json.loads(file.read_text())["figures"] if file.exists() else []
    rows = [row for row in before if row["network"] not in names]
    folder = str(Path(__file__).parent)
    for name in names:
        stock = isolated(needed, name)
        memory = int(PART * stock) // 2**20 * 2**20
        found = {
            "network": name,
            "batch": BATCHES[name],
            "stock_mib": round(stock / 2**20),
            "arena": str(Size(memory)),
        }
        rows.append(found | isolated(trained, name, memory, folder, memory=memory))
        print(table([list(rows[-1].values())], head=list(rows[-1])), flush=True)
        print(write("remat-planned", rows))


if __name__ == "__main__":
    main()
