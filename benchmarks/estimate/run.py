"""Predicts peaks, measures them in fresh processes, and runs each case under a cap of what it is said to need.

python benchmarks/estimate/run.py [NAME ...]     # only the cases whose label contains one of the names

Without names the results are written case by case, and a run that was ended goes on where it was.
"""

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from estimate.cases import CASES, Case
from machine import RESULTS, SMOKE, isolated, write
from memfit.estimation.estimating import estimate
from memfit.estimation.recording.specs import spec_of
from memfit.tables import table

MIB = 2**20
STEPS = 5
# Threads run the ops of a step in another order each time; the median of few runs is what is predicted.
MEASUREMENTS = 1 if SMOKE else 3


def measured(position: int, batch: int) -> int:
    """Returns the largest peak of five of Keras's own steps; runs in a fresh process in an arena."""
    import tensorflow as tf

    model = CASES[position].model()
    x, y = spec_of(model).batch(batch)
    tf.config.experimental.reset_memory_stats("CPU:0")
    for _ in range(STEPS):
        model.train_on_batch(x, y)
    return int(tf.config.experimental.get_memory_info("CPU:0")["peak"])


def under(position: int, batch: int, memory: int) -> int | None:
    """The peak of five steps in an arena of that size; None where they do not complete."""
    try:
        return isolated(measured, position, batch, memory=memory)
    except Exception as error:
        print(f"    under a cap of {memory / MIB:.0f} MiB: {type(error).__name__}", flush=True)
        return None


def figures(case: Case) -> list[dict[str, Any]]:
    """Estimates a case once and measures it at each of its batches."""
    position = CASES.index(case)
    model = case.model()
    begin = time.perf_counter()
    first = estimate(model, case.batches[0])
    seconds = time.perf_counter() - begin
    rows = []
    for batch in case.batches:
        begin = time.perf_counter()
        guess = first.at(batch)
        peak = int(guess.peak)
        further = time.perf_counter() - begin
        runs = sorted(isolated(measured, position, batch, memory="16GiB") for _ in range(MEASUREMENTS))
        truth = int(statistics.median(runs))
        capped = under(position, batch, int(guess.prediction.needed))
        rows.append(
            {
                "case": case.label,
                "batch": batch,
                "recorded": first.to_json()["recorded_batches"],
                "predicted": peak,
                "measured": truth,
                "spread": runs[-1] / runs[0] - 1,
                "error": peak / truth - 1,
                "margin": guess.margin,
                "completes": capped is not None,
                "measured_under_the_cap": capped,
                "seconds": seconds,
                "further_seconds": further,
            }
        )
        print(_row(rows[-1]), flush=True)
    return rows


def _row(row: dict[str, Any]) -> list[str]:
    return [
        row["case"],
        str(row["batch"]),
        f"{row['predicted'] / MIB:.0f}",
        f"{row['measured'] / MIB:.0f}",
        f"{row['error']:+.1%}",
        f"{row['spread']:.1%}",
        f"{row['margin']:+.1%}",
        "yes" if row["completes"] else "NO",
        f"{row['seconds']:.1f}",
        f"{row['further_seconds'] * 1000:.0f}",
    ]


def main() -> None:
    """Runs the cases, prints the table and writes benchmarks/results/estimate.json."""
    wanted = sys.argv[1:]
    chosen = [case for case in CASES if not wanted or any(name in case.label for name in wanted)]
    rows, failed = ([], {}) if wanted else _done_before()
    done = {row["case"] for row in rows} | set(failed)
    for case in chosen:
        if case.label in done:
            continue
        try:
            rows += figures(case)
        except Exception as error:  # one case that fails is a figure, too, and must not end the others
            failed[case.label] = f"{type(error).__name__}: {error}"
            print(f"{case.label}: {failed[case.label]}", flush=True)
        done.add(case.label)
        if rows and not wanted:
            left = [one.label for one in chosen if one.label not in done]
            write(
                "estimate", {"summary": _summary(rows, failed), "failed": failed, "left": left, "rows": rows}
            )
    head = [
        "case",
        "batch",
        "predicted MiB",
        "measured MiB",
        "error",
        "spread",
        "margin",
        "completes",
        "s",
        "further ms",
    ]
    print(table([_row(row) for row in rows], head=head, right=range(1, len(head))))
    print("\n".join(f"{name}: {value:.4g}" for name, value in _summary(rows, failed).items()))


def _done_before() -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Returns what a run without names that was ended has left: its rows, and the cases that failed."""
    file = RESULTS / "estimate.json"
    before = json.loads(file.read_text())["figures"] if file.exists() else {}
    return (before["rows"], before["failed"]) if before.get("left") else ([], {})


def _summary(rows: list[dict[str, Any]], failed: dict[str, str]) -> dict[str, float]:
    errors = sorted(abs(row["error"]) for row in rows)
    spreads = sorted(row["spread"] for row in rows)
    return {
        "cases": len(rows),
        "failed": len(failed),
        "median_error": statistics.median(errors),
        "p95_error": _percentile_95(errors),
        "median_spread": statistics.median(spreads),
        "p95_spread": _percentile_95(spreads),
        "mean_margin": statistics.mean(row["margin"] for row in rows),
        "completed": sum(row["completes"] for row in rows) / len(rows),
        "median_seconds": statistics.median(row["seconds"] for row in rows),
        "largest_seconds": max(row["seconds"] for row in rows),
        "largest_further_seconds": max(row["further_seconds"] for row in rows),
    }


def _percentile_95(ordered: list[float]) -> float:
    return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]


if __name__ == "__main__":
    main()
