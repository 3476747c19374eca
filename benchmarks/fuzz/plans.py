"""`make fuzz-plans`: random networks planned into half of their activations, and trained in an arena of that size.

    python benchmarks/fuzz/plans.py --networks 100 --seed 7

Each network has an odd batch. Stock Keras trains it in float64 in a large arena; memfit plans it exactly for less,
in a process whose arena is no larger, and trains it there. Compared are predicted and measured peak, events, losses
and weights. A refusal is asked once more, for the memory that it advises. Rows are kept: the next run goes on.
"""

import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import memfit
from fuzz.compare import TOLERANCE, TOLERANCE_MIXED
from fuzz.networks import Network, data
from fuzz.peaks import compiled, make_rows
from machine import RESULTS, SMOKE, isolated
from memfit.tables import table

BATCHES = (9,) if SMOKE else (3001, 5003, 8009)
STEPS = 3
MIB = 2**20
NAME = "fuzz-plans"
# Networks with smaller activations are left out: most of their arena is what the input pipeline holds, and that is
# only roughly known (`estimation/waiting.py`).
LEAST, PART = (0, 0.0) if SMOKE else (6 * MIB, 1 / 3)


def make_arguments(network: Network, batch: int) -> dict[str, Any]:
    """Makes what `fit` takes."""
    x, y, weights = data({**network, "batch": batch}, STEPS)
    return {"x": x, "y": y, "sample_weight": weights, "batch_size": batch, "shuffle": False, "verbose": 0}


def train_stock(network: Network, batch: int) -> tuple[list[float], list[Any]]:
    """Trains with stock Keras; returns losses and variables."""
    model = compiled(network, "float64")
    history = model.fit(**make_arguments(network, batch), epochs=2)
    return history.history["loss"], [np.asarray(v) for v in (*model.variables, *model.optimizer.variables)]


def ask(network: Network, batch: int) -> tuple[int, int]:
    """Returns the bytes that stock's step needs in `fit`, and those of its activations."""
    model = compiled(network, "float64")
    arguments = make_arguments(network, batch)
    estimate = memfit.estimate(model, batch, data=(arguments["x"], arguments["y"]))
    return int(estimate.needed), int(estimate.breakdown["activations"])


def train_planned(network: Network, batch: int, memory: int) -> dict[str, Any]:
    """Plans for an arena that is this process's, and trains in it."""
    model = compiled(network, "float64")
    try:
        run = memfit.fit(model, **make_arguments(network, batch), epochs=2, memory=memory, allow="exact")
    except memfit.DoesNotFit as refusal:
        return {"refused": int(refusal.smallest_memory)}
    state = [np.asarray(v) for v in (*model.variables, *model.optimizer.variables)]
    return {
        "plan": str(run.memory.plan.recipe),
        "predicted": int(run.memory.predicted),
        "measured": int(run.memory.measured),
        "events": [event.says for event in run.memory.events if event.phase],
        "losses": run.history["loss"],
        "state": state,
    }


def compare(network: Network, batch: int) -> dict[str, Any]:
    """Makes a row; what failed is in it, too."""
    row: dict[str, Any] = {"network": network, "batch": batch}
    try:
        losses, state = isolated(train_stock, network, batch, memory="8GiB")
    except Exception as error:  # a network that stock Keras does not train
        return row | {"not_trained": f"{type(error).__name__}: {error}"[:200]}
    try:
        needed, activations = isolated(ask, network, batch)
        if activations < max(LEAST, PART * needed):
            return row | {"small": activations}
        memory = needed - activations // 2
        row |= {"needed": needed, "memory": memory}
        planned = isolated(train_planned, network, batch, memory, memory=memory)
        if "refused" in planned:
            row["advised"] = memory = planned["refused"]
            planned = isolated(train_planned, network, batch, memory, memory=memory)
            if "refused" in planned:
                return row | {"contradicted": planned["refused"]}
    except Exception as error:  # memfit's: it is counted, and the other rows are still made
        return row | {"failure": f"{type(error).__name__}: {error}"[:300]}
    pairs = [*zip(state, planned.pop("state"), strict=True), (losses, planned.pop("losses"))]
    row["differs"] = max(float(np.max(np.abs(np.subtract(*pair)), initial=0.0)) for pair in pairs)
    return row | planned | {"error": planned["predicted"] / planned["measured"] - 1}


def _tolerance(row: dict[str, Any]) -> float:
    return TOLERANCE_MIXED if row["network"]["mixed"] else TOLERANCE


def summarise(rows: list[dict[str, Any]]) -> str:
    """Returns the figures of all rows as a table."""
    trained = [row for row in rows if "error" in row]
    errors = sorted(abs(row["error"]) for row in trained) or [0.0]
    return table(
        [
            ["networks", sum("small" not in row and "not_trained" not in row for row in rows)],
            ["trained in less than stock needs", sum("advised" not in row for row in trained)],
            ["refused; trained in the memory that was advised", sum("advised" in row for row in trained)],
            ["refused again in the memory that was advised", sum("contradicted" in row for row in rows)],
            ["failed", sum("failure" in row for row in rows)],
            ["ran out of memory on the way", sum(bool(row["events"]) for row in trained)],
            [
                f"differ from stock by more than {TOLERANCE}",
                sum(row["differs"] > TOLERANCE for row in trained),
            ],
            ["error of the planned peak: median", f"{statistics.median(errors):.1%}"],
            ["95th percentile", f"{errors[int(0.95 * (len(errors) - 1))]:.1%}"],
            ["largest", f"{errors[-1]:.1%}"],
        ]
    )


def main() -> None:
    """Goes on behind the rows that are there."""
    rows = make_rows(
        NAME, __doc__, 7, lambda network, number: compare(network, BATCHES[number % len(BATCHES)])
    )
    print(summarise(rows))
    print(f"Written to {RESULTS / NAME}.json")


if __name__ == "__main__":
    main()
