"""Several ranks against one device: the same result, the time of a step, the memory beside the gradients.

Ranks are processes on loopback with a plain Keras model each; one device is stock Keras. All trainings are in
float64, so that a difference of mathematics shows beside rounding. Beside memfit stands stock Keras under
MirroredStrategy with two logical CPUs.
"""

import sys
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from machine import SMOKE, isolated, write
from scale import measure
from scale.cases import CASES
from scale.processes import run_ranks

ROUNDS = 1 if SMOKE else 3
NAMES = list(CASES)[:1] if SMOKE else list(CASES)


def difference(found: Any, expected: Any) -> float | str:
    """Returns the largest absolute difference of any variable; what failed where there is none."""
    if isinstance(found, str):
        return f"fails ({found})"
    pairs = zip(found["states"], expected["states"], strict=True)
    return max(float(np.abs(one.astype(float) - other.astype(float)).max(initial=0)) for one, other in pairs)


def same_bits(ranks: list[Any], name: str) -> bool:
    """Whether all ranks ended with the same bits and the same logs."""
    first = ranks[0][name]
    return all(
        rank[name]["logs"] == first["logs"]
        and all(map(np.array_equal, rank[name]["states"], first["states"]))
        for rank in ranks
    )


def exactness() -> list[dict[str, Any]]:
    """Trains every case by stock Keras on one device and on two replicas, and by memfit on two and three ranks."""
    stock = isolated(measure.train_by_keras, NAMES, 1)
    mirrored = stock if SMOKE else isolated(measure.train_by_keras, NAMES, 2)
    two, three = (run_ranks(measure.train_by_memfit, NAMES, count=count) for count in (2, 3))
    rows = []
    for name in NAMES:
        row = {
            "case": name,
            "2 ranks": difference(two[0][name], stock[name]),
            "3 ranks": difference(three[0][name], stock[name]),
            "same bits on all ranks": same_bits(two, name) and same_bits(three, name),
            "MirroredStrategy": difference(mirrored[name], stock[name]),
        }
        rows.append(row)
        shown = [value if isinstance(value, str) else f"{value:.1e}" for value in list(row.values())[1:]]
        print(f"{name:45}", *(f"{each:>12}" for each in shown), flush=True)
    return rows


def step_times() -> dict[str, float]:
    """Returns the median milliseconds of a step on 2 ranks, rounds of both in turn."""
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(max(run_ranks(measure.time_by_memfit, count=2)))
        if not SMOKE:
            theirs.append(max(run_ranks(measure.time_by_patched_keras, count=2, joins=False)))
    theirs = theirs or ours
    found = {"memfit": 1000 * median(ours), "patched MultiWorkerMirroredStrategy": 1000 * median(theirs)}
    found["ratio"] = found["memfit"] / found["patched MultiWorkerMirroredStrategy"]
    print(found, flush=True)
    return found


def memory() -> dict[str, float]:
    """Returns what adding up 24 gradients of 4 MiB takes beside them, on 2 ranks."""
    found: dict[str, float] = max(
        run_ranks(measure.memory_beside_gradients, count=2, memory="1GiB"), key=lambda each: each["beside"]
    )
    print(found, flush=True)
    return found


def sharded_state() -> dict[str, float]:
    """Returns Adam's state on a rank and the median milliseconds of a step, whole and dealt out to 2 ranks."""
    whole, parts = (run_ranks(measure.train_sharded, each, count=2) for each in (False, True))
    found = {
        "state, MiB": max(rank["state"] for rank in whole),
        "dealt out, MiB": max(rank["state"] for rank in parts),
        "step, ms": 1000 * max(rank["seconds"] for rank in whole),
        "dealt out, ms": 1000 * max(rank["seconds"] for rank in parts),
    }
    print(found, flush=True)
    return found


if __name__ == "__main__":
    parts = {
        "memory, MiB": memory,
        "exactness": exactness,
        "step, ms": step_times,
        "sharded state": sharded_state,
    }
    figures: dict[str, Any] = {}
    for name, part in parts.items():
        figures[name] = part()
        write("scale", figures)
