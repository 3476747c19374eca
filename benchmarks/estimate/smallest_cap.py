"""Looks for the smallest cap that trainings of the benchmark complete under: what no margin can do better than.

python benchmarks/estimate/smallest_cap.py [NAME@BATCH ...]    # only rows whose label contains one of the names

Each row of benchmarks/results/estimate.json is run again, five of Keras's own steps in a fresh process, under caps
above its measured peak, from below, until two neighbouring caps do: whether a cap does is not monotone. Rows whose
estimates ask for the largest margins come first. What is found is added to benchmarks/results/smallest-cap.json
row by row, so a run may be ended and go on later; rows that are named are looked at again.
"""

import json
import os
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from estimate.cases import CASES
from estimate.run import MIB, under
from estimate.run import main as estimate
from machine import RESULTS, SMOKE, write
from memfit.tables import table

FACTORS = (1.02, 1.05, 1.08, 1.12, 1.16, 1.2, 1.3, 1.4, 1.5)


def tried(row: dict[str, Any]) -> dict[str, Any]:
    """Runs a row under one cap after the other, and returns it with what became of each."""
    label, batch = row["case"], row["batch"]
    position = next(number for number, case in enumerate(CASES) if case.label == label)
    tries: list[dict[str, Any]] = []
    begin, load = time.perf_counter(), os.getloadavg()[0]
    for factor in FACTORS:
        cap = -(-int(factor * row["measured"]) // MIB) * MIB
        if tries and cap == tries[-1]["cap"]:
            continue
        peak = under(position, batch, cap)
        tries.append(
            {"factor": cap / row["measured"], "cap": cap, "completes": peak is not None, "peak": peak}
        )
        if [one["completes"] for one in tries[-2:]] == [True, True]:
            break
    found = [one["factor"] for one, after in pairwise(tries) if one["completes"] and after["completes"]]
    return {
        "case": label,
        "batch": batch,
        "measured": row["measured"],
        "asked": row["predicted"] * (1 + row["margin"]) / row["measured"] - 1,
        "smallest": found[0] - 1 if found else None,
        "tries": tries,
        "seconds": time.perf_counter() - begin,
        "load_before": load,
    }


def main() -> None:
    """Tries the rows, prints a table and writes benchmarks/results/smallest-cap.json."""
    wanted = sys.argv[1:]
    if SMOKE:
        estimate()
    rows = json.loads((RESULTS / "estimate.json").read_text())["figures"]["rows"]
    rows.sort(key=lambda row: -row["margin"])
    file = RESULTS / "smallest-cap.json"
    known = json.loads(file.read_text())["figures"]["rows"] if file.exists() else []
    done = {(row["case"], row["batch"]): row for row in known}
    for row in rows:
        key = (row["case"], row["batch"])
        if any(name in "{}@{}".format(*key) for name in wanted) if wanted else key not in done:
            done[key] = tried(row)
            write("smallest-cap", {"summary": _summary(list(done.values())), "rows": list(done.values())})
            print(_row(done[key]), flush=True)
    head = ["case", "batch", "measured MiB", "asked", "smallest", "runs out at"]
    print(table([_row(row) for row in done.values()], head=head, right=range(1, len(head))))
    print(_summary(list(done.values())))


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    known = [row for row in rows if row["smallest"] is not None]
    return {
        "rows": len(rows),
        "mean_smallest_margin": statistics.mean(row["smallest"] for row in known) if known else None,
        "mean_margin_asked": statistics.mean(row["asked"] for row in known) if known else None,
        "quiet": False,
    }


def _row(row: dict[str, Any]) -> list[str]:
    return [
        row["case"],
        str(row["batch"]),
        f"{row['measured'] / MIB:.0f}",
        f"{row['asked']:+.1%}",
        "-" if row["smallest"] is None else f"{row['smallest']:+.1%}",
        ", ".join(f"{one['factor'] - 1:+.0%}" for one in row["tries"] if not one["completes"]),
    ]


if __name__ == "__main__":
    main()
