"""Networks that nobody tuned memfit for: estimates, runs capped at them, exact plans for half of the activations.

Usage: run.py [NETWORK ...] (without a name, those that are not in the results yet: it can be stopped and goes on)
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
from zoo.networks import BATCH, build, data, names

STEPS = 1 if SMOKE else 3
PEAK_STEPS = 5  # a predicted peak is the largest of so many steps, and later steps peak higher than the first
MIB = 2**20
FOLDER = str(Path(__file__).parents[1])


def predict(name: str, folder: str) -> dict[str, Any]:
    """Estimates stock's step, and what is left of it with half of the activations."""
    sys.path.insert(0, folder)
    import memfit

    began = time.perf_counter()
    estimate = memfit.estimate(build(name), BATCH)
    return {
        "peak": int(estimate.peak),
        "needed": int(estimate.prediction.needed),
        "half": int(estimate.prediction.needed) - int(estimate.breakdown["activations"]) // 2,
        "seconds": time.perf_counter() - began,
    }


def run_steps(name: str, folder: str) -> tuple[int, list[float]]:
    """Runs stock's step on a few batches, then goes on as far as a predicted peak does; returns peak and losses."""
    sys.path.insert(0, folder)
    import tensorflow as tf

    model = build(name)
    x, y = data(model, STEPS * BATCH)
    batches = [slice(step * BATCH, (step + 1) * BATCH) for step in range(STEPS)]
    losses = [float(model.train_on_batch(x[batch], y[batch], return_dict=True)["loss"]) for batch in batches]
    for _ in range(STEPS, PEAK_STEPS):
        model.train_on_batch(x[batches[0]], y[batches[0]])
    return int(tf.config.experimental.get_memory_info("CPU:0")["peak"]), losses


def run_planned(name: str, memory: int, folder: str) -> dict[str, Any]:
    """Plans for an arena that is this process's, and trains in it."""
    sys.path.insert(0, folder)
    import keras

    import memfit
    from memfit.planning.does_not_fit import DoesNotFit

    model = build(name)
    x, y = data(model, STEPS * BATCH)
    losses: list[float] = []
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(logs["loss"]))
    began = time.perf_counter()
    try:
        plan = memfit.plan(model, BATCH, memory, "exact", data=(x, y))
    except DoesNotFit as refusal:
        return {
            "plan": f"refused: needs {refusal.smallest_memory}",
            "seconds_to_plan": time.perf_counter() - began,
        }
    seconds = time.perf_counter() - began
    run = memfit.fit(
        model, x, y, batch_size=BATCH, shuffle=False, verbose=0, plan=plan, callbacks=[note]
    ).memory
    return {
        "plan": str(plan.recipe),
        "seconds_to_plan": seconds,
        "planned_error": run.predicted / run.measured - 1,
        "events": sum(bool(event.phase) for event in run.events),
        "losses": losses,
    }


def measure(name: str) -> dict[str, Any]:
    """Makes the row of a network."""
    predicted = isolated(predict, name, FOLDER)
    peak, losses = isolated(run_steps, name, FOLDER, memory="4GiB" if SMOKE else "12GiB")
    row: dict[str, Any] = {
        "network": name,
        "predicted_mib": round(predicted["peak"] / MIB),
        "measured_mib": round(peak / MIB),
        "error": round(predicted["peak"] / peak - 1, 3),
        "margin": round(predicted["needed"] / predicted["peak"] - 1, 3),
        "seconds": round(predicted["seconds"], 1),
    }
    try:
        isolated(run_steps, name, FOLDER, memory=predicted["needed"])
        row["capped"] = "completes"
    except Exception as error:  # the table says what became of it
        row["capped"] = f"{type(error).__name__}"
    x, y = data(build(name), STEPS * BATCH)
    memory = predicted["half"] + x.nbytes + y.nbytes + 5 * (x.nbytes + y.nbytes) // STEPS
    row["arena_mib"] = round(memory / MIB)
    try:
        planned = isolated(run_planned, name, memory, FOLDER, memory=memory)
    except Exception as error:  # and the other rows are still measured
        planned = {"plan": f"{type(error).__name__}: {error}"[:200]}
    if "losses" in planned:
        # Keras shows the mean of an epoch's losses so far.
        mean = [sum(losses[: step + 1]) / (step + 1) for step in range(len(losses))]
        pairs = list(zip(mean, planned.pop("losses"), strict=True))
        row["loss_differs"] = max(abs(ours / stock - 1) for stock, ours in pairs)
    return row | {
        key: round(value, 3) if isinstance(value, float) else value for key, value in planned.items()
    }


def summarise(rows: list[dict[str, Any]]) -> str:
    """Says in a line each how good estimates and plans are."""
    errors = sorted(abs(row["error"]) for row in rows)
    planned = [row for row in rows if "events" in row]
    return table(
        [
            ["networks", len(rows)],
            ["error of the estimate, median", f"{median(errors):.1%}"],
            ["error of the estimate, 95th percentile", f"{errors[int(0.95 * (len(errors) - 1))]:.1%}"],
            ["error of the estimate, largest", f"{errors[-1]:.1%}"],
            ["margin, mean", f"{sum(row['margin'] for row in rows) / len(rows):.1%}"],
            [
                "runs capped at what is needed that complete",
                sum(row["capped"] == "completes" for row in rows),
            ],
            ["exact plans for half of the activations", len(planned)],
            ["of these, trainings that ran out", sum(row["events"] > 0 for row in planned)],
            [
                "largest difference of a loss from stock's",
                max((row["loss_differs"] for row in planned), default=0),
            ],
        ]
    )


def main() -> None:
    """Measures the networks, and writes the table after each."""
    file = RESULTS / "zoo.json"
    rows = json.loads(file.read_text())["figures"] if file.exists() else []
    asked = sys.argv[1:] or (
        ["dense"] if SMOKE else [n for n in names() if n not in {r["network"] for r in rows}]
    )
    for name in asked:
        rows = [row for row in rows if row["network"] != name]
        rows.append(measure(name))
        print(json.dumps(rows[-1]), flush=True)
        write("zoo", rows)
    print(summarise(rows))


if __name__ == "__main__":
    main()
