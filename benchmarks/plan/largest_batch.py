"""The largest batch that trains in an arena: stock Keras by trial runs, memfit by one call of `memfit.plan`.

    python benchmarks/plan/largest_batch.py [NETWORK ...]              # memfit's plans, made and trained
    python benchmarks/plan/largest_batch.py --trials [NETWORK ...]     # stock's largest batch, by trial runs

Trials are those of a person: double the batch from 1 until memory runs out, then bisect. Each is two steps in a
fresh process in the arena. They take some minutes a network, so they are kept in the results until they are asked
for again; so are the rows of networks that are not named.

The same question, stock's largest batch, is put to `memfit.estimate(...).max_batch(...)` in a fresh process; it
does not count the batches that `fit` keeps waiting in an arena.

memfit's batch is found by one call in a fresh process. What it plans is then trained in the arena, so that a batch
counts only if it really runs, and its peak is held against the predicted one. Where a plan computes micro-batches,
its peak hardly depends on the batch, and the largest batch is whatever one likes; so the wanted multiple of stock's
batch is trained: one whole batch, and two micro-batches of a second one.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import memfit
from machine import RESULTS, SMOKE, isolated, write
from memfit.tables import table
from models import compiled, data

MEMORY = {"MobileNetV2": "512MiB", "U-Net": "512MiB", "ResNet50": "1GiB", "VGG19": "1536MiB"}
if SMOKE:
    MEMORY = {"tiny": "64MiB"}
WANTED = {"exact": 3, "near": 16}  # times stock's batch
NAME = "largest-batch"


def stock_trains(name: str, batch: int) -> bool:
    """Trains two steps as stock Keras does; runs in the arena."""
    model = compiled(name)
    model.fit(*data(model, 2 * batch), batch_size=batch, verbose=0)
    return True


def memfit_trains(name: str, plan: memfit.Plan) -> dict[str, Any]:
    """Trains a batch, and a second one or two micro-batches of it, with a plan; runs in the arena."""
    model = compiled(name)
    samples = plan.batch_size + (2 * plan.recipe.micro_batch if plan.recipe.micro_batch else plan.batch_size)
    history = memfit.fit(model, *data(model, samples), plan=plan, verbose=0)
    return {
        "measured_mib": history.memory.measured / 2**20,
        "predicted_mib": history.memory.predicted / 2**20,
        "error": history.memory.predicted / history.memory.measured - 1,
        "events": [str(event) for event in history.memory.events],
    }


def in_arena(name: str, function: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    """Returns what a run in the arena gives (None where it runs out of memory or dies of it), and its seconds."""
    import tensorflow as tf

    begun = time.perf_counter()
    try:
        result = isolated(function, name, *args, memory=MEMORY[name])
    except (tf.errors.ResourceExhaustedError, memfit.OutOfMemory, memfit.ProcessDied):
        result = None
    return result, time.perf_counter() - begun


def trials(name: str) -> list[dict[str, Any]]:
    """Doubles stock's batch from 1 and then bisects; every trial with its outcome and its seconds."""
    made: list[dict[str, Any]] = []

    def fits(batch: int) -> bool:
        result, seconds = in_arena(name, stock_trains, batch)
        made.append({"batch": batch, "fits": result is not None, "seconds": round(seconds, 1)})
        print(name, made[-1], file=sys.stderr)
        return result is not None

    low, high = 0, 1
    while fits(high) and not SMOKE:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return made


def largest(made: list[dict[str, Any]]) -> int:
    """The largest batch that trained."""
    return max(trial["batch"] for trial in made if trial["fits"])


def estimated(name: str) -> int:
    """Stock's largest batch, from a recording."""
    return memfit.estimate(compiled(name), 32).max_batch(MEMORY[name])


def stock_largest(name: str) -> dict[str, Any]:
    """What an estimate says of stock's largest batch, and how long it takes."""
    begun = time.perf_counter()
    batch = isolated(estimated, name)
    return {"batch": batch, "seconds": round(time.perf_counter() - begun, 1)}


def planned(name: str, batch_size: Any, allow: str) -> memfit.Plan:
    """Plans, as a person would who has not started the training."""
    return memfit.plan(compiled(name), batch_size, memory=MEMORY[name], allow=allow)


def memfit_largest(name: str, allow: str, stock: int) -> dict[str, Any]:
    """Plans the largest batch, or the wanted one where micro-batches leave it open, and trains it."""
    wanted = WANTED["near"] * stock
    begun = time.perf_counter()
    try:
        plan = isolated(planned, name, "max" if allow == "exact" and not SMOKE else wanted, allow)
    except memfit.DoesNotFit as refusal:
        return {"batch": 0, "plan_seconds": time.perf_counter() - begun, "refused": str(refusal)}
    seconds = time.perf_counter() - begun
    bounded = plan.recipe.micro_batch is None
    if not bounded:
        plan = replace(plan, batch_size=wanted)  # the same micro-batches, fewer of them
    trained, trained_seconds = in_arena(name, memfit_trains, plan)
    return {
        "batch": plan.batch_size,
        "bounded": bounded,
        "times_stock": plan.batch_size / stock,
        "plan_seconds": round(seconds, 1),
        "trained_seconds": round(trained_seconds, 1),
        "fidelity": str(plan.fidelity),
        "micro_batch": plan.recipe.micro_batch,
        "segments": None if plan.recipe.segments is None else len(plan.recipe.segments.starts) + 1,
        "predicted_time_ratio": round(plan.time, 3),
        "trained": trained,
    }


def said(figures: dict[str, Any] | None) -> str:
    """A batch with its multiple, and what became of it in the arena."""
    if figures is None:
        return "not run"
    if figures["batch"] == 0:
        return "refused"
    text = f"{figures['batch']}{'' if figures['bounded'] else '+'} ({figures['times_stock']:.1f}x)"
    trained = figures["trained"]
    if trained is None:
        return f"{text} OOM"
    return f"{text}, predicted {trained['error']:+.0%}{', tightened' if trained['events'] else ''}"


def shown(row: dict[str, Any]) -> list[object]:
    """A network's row of the table."""
    made, estimated, exact = row["trials"], row.get("estimated"), row.get("exact")
    waited = sum(trial["seconds"] for trial in made)

    def faster(seconds: float) -> str:
        return f"{seconds:.0f} s ({waited / max(seconds, 0.1):.1f}x)"  # seconds are kept to a tenth

    return [
        row["model"],
        row["memory"],
        largest(made),
        said(exact),
        said(row.get("near")),
        f"{len(made)} in {waited:.0f} s",
        f"{estimated['batch']} in {faster(estimated['seconds'])}" if estimated else "not run",
        faster(exact["plan_seconds"]) if exact else "not run",
    ]


def kept() -> dict[str, dict[str, Any]]:
    """The rows of earlier runs, by network."""
    file = RESULTS / f"{NAME}.json"
    rows = json.loads(file.read_text())["figures"] if file.exists() else []
    return {row["model"]: row for row in rows}


def main() -> None:
    """Measures the networks named, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("networks", nargs="*", choices=[*MEMORY, []], metavar="NETWORK")
    parser.add_argument("--trials", action="store_true", help="measure stock's trials, and nothing else")
    args = parser.parse_args()
    rows = kept()
    for name in args.networks or MEMORY:
        row = rows.setdefault(name, {"model": name, "memory": MEMORY[name]})
        if args.trials or "trials" not in row:
            row["trials"] = trials(name)
        if not args.trials:
            stock = largest(row["trials"])
            row["estimated"] = stock_largest(name)
            row["exact"] = memfit_largest(name, "exact", stock)
            # Where micro-batches are exact, there is nothing that near would add.
            open_ended = row["exact"].get("bounded") is False
            row["near"] = row["exact"] if open_ended or SMOKE else memfit_largest(name, "near", stock)
        file = write(NAME, list(rows.values()))
        print(shown(row), file=sys.stderr)
    head = ["model", "arena", "stock", "memfit, exact", "memfit, near", "trials", "estimate", "plan"]
    print(table([shown(row) for row in rows.values()], head=head, right=[2, 5, 6, 7]))
    print(
        "Wanted: exact 3x, near 16x, found 10x faster, peaks within 8%. A + means that a larger batch would do."
    )
    print(f"Written to {file}")


if __name__ == "__main__":
    main()
