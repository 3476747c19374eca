"""Faults on two and three ranks in every stage of a training, compared with the run in which nothing happens.

    python benchmarks/scale/run_faults.py [--faults N] [--results FILE]

Ranks are killed and frozen before, in and after steps, in validations and between trainings, rank 0 and others, and
come late; all of that must end bit for bit the same, with every batch trained once. Memory that is taken away from
one rank must end within float64 rounding: that rank's steps are tightened, the others wait.
Goes on where it stopped: remove the file of results to begin anew.
"""

import argparse
import json
import os
import pickle
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from chaos.run import difference
from machine import RESULTS, machine
from memfit.survival.settings import RunSettings
from memfit.survival.supervising import supervise
from memfit.tables import table

SCRIPT = Path(__file__).parent / "faulty_training.py"
SEED = 20
ROUNDING = 1e-9  # of float64, after 57 steps
BATCHES, TESTS = 57, 15  # of the training, whatever the ranks
# (ranks, kind, faults): 40 in all
RUNS = ((2, "process", 13), (3, "process", 12), (2, "process", 10), (2, "memory", 5))
STAGES = ("begin", "in step", "end", "test")
ARENA = {"process": None, "memory": "96MiB"}


class Run:
    """One run in a directory of its own, with the faults that are to happen to it."""

    def __init__(self, ranks: int, kind: str, folder: Path, faults: dict[str, str]) -> None:
        (folder / "faults").mkdir(parents=True)
        for place, fault in faults.items():
            (folder / "faults" / place).write_text(fault)
        self.told: list[tuple[float, str]] = []
        home, begun = Path.cwd(), time.time()
        os.chdir(folder)
        settings = RunSettings(ARENA[kind], seed=SEED, quiet=True, checkpoint_seconds=3600.0, ranks=ranks)
        try:
            self.code = supervise(
                SCRIPT, [kind], settings, tell=lambda line: self.told.append((time.time(), line))
            )
        finally:
            os.chdir(home)
        self.seconds = time.time() - begun
        happened = folder / ("memory" if kind == "memory" else "happened")  # what was not missed is no fault
        self.happened = happened.read_text().splitlines() if happened.exists() else []
        files = [folder / f"result-{rank}" for rank in range(ranks)]
        self.results = [pickle.loads(file.read_bytes()) for file in files if file.exists()]

    def noticed_after(self) -> list[float]:
        """Seconds from each fault that ended the ranks to the line that tells of it."""
        deaths = [at for at, line in self.told if line.startswith("rank ")]
        faults = [float(line.split()[0]) for line in self.happened if " SIG" in line]
        return [at - max((f for f in faults if f < at), default=at) for at in deaths]


def process_faults(ranks: int, count: int, random: Any) -> dict[str, str]:
    """So many faults, each in its own stretch of the training, of every kind and stage, on every rank in turn."""
    places: dict[str, str] = {"1-start-0": "late 8"}
    stretch = (BATCHES - 2) / (count - 1)
    for number in range(count - 1):
        rank, stage = number % ranks, STAGES[number % len(STAGES)]
        kind = "SIGSTOP" if number % 5 == 4 else "SIGKILL"
        batch = 2 + int(stretch * number)
        if stage == "in step":
            places[f"{rank}-begin-{batch}"] = f"{kind} {random.uniform(0.0, 0.03):.4f}"
        elif stage == "test" and batch < 50:
            places[f"{rank}-test-{3 * (batch // 10) + 1 + int(random.integers(2))}"] = kind
        else:
            places[f"{rank}-{'end' if stage == 'test' else stage}-{batch}"] = kind
    return places


def memory_faults(ranks: int, count: int, random: Any) -> dict[str, str]:
    """Memory taken away from single ranks in so many steps."""
    batches = sorted(random.choice(np.arange(3, BATCHES - 8), count, replace=False).tolist())
    return {f"{number % ranks}-begin-{batch}": "memory" for number, batch in enumerate(batches)}


def measure(ranks: int, kind: str, count: int, seed: int, folder: Path) -> dict[str, Any]:
    """Runs a training undisturbed and with faults, and compares."""
    undisturbed = Run(ranks, kind, folder / "undisturbed", {})
    if len(undisturbed.results) != ranks:
        raise SystemExit(f"The undisturbed run failed with exit code {undisturbed.code}: {undisturbed.told}")
    make = process_faults if kind == "process" else memory_faults
    run = Run(ranks, kind, folder / "faults", make(ranks, count, np.random.default_rng([SEED, seed])))
    expected = undisturbed.results[0]
    off = max((difference(result, expected) for result in run.results), default=float("inf"))
    whole = len(run.results) == ranks and all(result["begun"] == BATCHES for result in run.results)
    return {
        "seed": seed,
        "ranks": ranks,
        "faults": kind,
        "happened": len(run.happened),
        "restarts": sum(line.startswith("restart") for _, line in run.told),
        "batches_once": whole and all(len(result["batches"]) == BATCHES for result in run.results),
        "largest_difference": off,
        "right": whole and (off == 0.0 if kind == "process" else off <= ROUNDING),
        "slowest_noticed_s": max(run.noticed_after(), default=0.0),
        "seconds": run.seconds,
        "undisturbed_seconds": undisturbed.seconds,
        "told": [line for _, line in run.told],
        "log": run.happened,
    }


def main() -> None:
    """Measures all runs, or one with so many faults, and prints what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, help="one run on 2 ranks with so many faults of processes")
    parser.add_argument(
        "--results", type=Path, default=RESULTS / "chaos_scale.json", help="the file to write"
    )
    args = parser.parse_args()
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    runs = RUNS if args.faults is None else ((2, "process", args.faults),)
    known = json.loads(args.results.read_text())["figures"] if args.results.exists() else []
    rows = {row["seed"]: row for row in known}
    for seed, (ranks, kind, count) in enumerate(runs):
        if seed in rows:
            continue
        with tempfile.TemporaryDirectory() as folder:
            row = rows[seed] = measure(ranks, kind, count, seed, Path(folder))
        args.results.write_text(
            json.dumps({"machine": machine(), "figures": list(rows.values())}, indent=2) + "\n"
        )
        print(f"  {ranks} ranks, {kind}: {'ok' if row['right'] else 'WRONG'}", flush=True)
    head = ["ranks", "faults", "happened", "restarts", "batches once", "largest difference", "noticed within"]
    cells = [
        [
            row["ranks"],
            row["faults"],
            row["happened"],
            row["restarts"],
            "yes" if row["batches_once"] else "NO",
            "none" if row["largest_difference"] == 0 else f"{row['largest_difference']:.1e}",
            f"{row['slowest_noticed_s']:.1f} s",
        ]
        for row in rows.values()
    ]
    print(table(cells, head=head, right=[0, 2, 3, 5, 6]))
    wrong = sum(not row["right"] for row in rows.values())
    print(f"\n{sum(row['happened'] for row in rows.values())} faults; {wrong} of {len(rows)} runs wrong.")
    print(f"Written to {args.results}")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
