"""Faults at random moments in four trainings, each compared with the run in which nothing happens.

    python benchmarks/chaos/run.py [--training NAME] [--kind process|memory] [--faults N] [--results FILE]

Every training runs under `memfit run` in an arena: undisturbed, and with its process killed, crashed, its
checkpoints torn and its disk full, which must end bit for bit the same. Then, without dropout, undisturbed and with
memory taken away in its steps, its validation and its prediction, which must be equal to float32 rounding: its plan
is tightened on the way, and micro-batches draw other dropout masks than the whole batch does. The convolutional
ones then learn gently (`training.images` says why).
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

from machine import RESULTS, machine
from memfit.budgets.arena import arena_environment
from memfit.survival.settings import RunSettings
from memfit.survival.supervising import supervise
from memfit.tables import table

SCRIPT = Path(__file__).parent / "training.py"
TRAININGS = ("convolutional", "attention", "recurrent", "two stages")
KINDS = ("process", "memory")
PROCESS_FAULTS = ["SIGKILL"] * 5 + ["SIGSEGV"] * 3 + ["SIGABRT"] + ["torn"] * 2 + ["disk-full"] * 2
ARENA = "300MiB"
SEED = 20
# All runs of a training draw the same numbers where its script has no seed.
SETTINGS = RunSettings(allow="exact", checkpoint_seconds=0.0, seed=SEED)
# After an OOM the rest is computed in smaller pieces: sums in another order, and then more steps on top of them.
ROUNDING = 1e-3


class Run:
    """One run of a training in a directory of its own, with the faults that are to happen."""

    def __init__(self, name: str, folder: Path, dropout: float, faults: dict[str, str]) -> None:
        (folder / "faults").mkdir(parents=True)
        for place, fault in faults.items():
            (folder / "faults" / place).write_text(fault)
        self.faults, self.told, self.restarts = faults, [], []
        self._died = time.time()
        home = Path.cwd()
        os.chdir(folder)
        begun = time.time()
        try:
            arguments = [name, "out", str(dropout)]
            self.code = supervise(SCRIPT, arguments, SETTINGS, tell=self._tell)
        finally:
            os.chdir(home)
        self._note_restart(folder)
        self.seconds = time.time() - begun
        self.left = sorted(path.name for path in (folder / "faults").iterdir())
        memory = folder / "memory"
        self.shortages = memory.read_text().splitlines() if memory.exists() else []
        self.result = pickle.loads((folder / "out").read_bytes()) if (folder / "out").exists() else None

    @property
    def deaths(self) -> int:
        """How many processes died and were followed by another."""
        return sum(line.startswith("restart ") for line in self.told)

    def missed(self) -> int:
        """How often memory was missed; what was taken away and not missed is no fault."""
        return len({text.partition(" ")[2] for text in self.shortages}) + self.deaths

    def _tell(self, line: str) -> None:
        if line.startswith("restart "):
            self._note_restart(Path.cwd())
        self.told.append(line)

    def _note_restart(self, folder: Path) -> None:
        """Seconds from a process's begin (or the death before it) to its first batch."""
        first = folder / "first"
        if first.exists():
            self.restarts.append(float(first.read_text()) - self._died)
            first.unlink()
        self._died = time.time()


def process_faults(batches: int, random: Any, count: int) -> dict[str, str]:
    """So many faults of a process, in a random order, each somewhere in its own stretch of the training."""
    kinds = list(random.permutation(PROCESS_FAULTS))[:count]
    stretch = batches // (len(kinds) + 1)
    return {
        str(2 + number * stretch + int(random.integers(2))): f"{kind} {random.uniform(0, 0.05):.4f}"
        for number, kind in enumerate(kinds)
    }


def memory_faults(batches: int, random: Any, count: int) -> dict[str, str]:
    """Memory taken away in two steps, at some point of them, in a validation and in a prediction: so many."""
    early, late = random.integers(3, batches // 3), random.integers(batches // 2, batches - 5)
    steps = {str(place): f"memory {random.uniform(0, 0.5):.3f}" for place in (early, late)}
    faults = {**steps, "validation": "memory 0", "prediction": "memory 0"}
    return dict(list(faults.items())[:count])


def difference(actual: Any, expected: Any) -> float:
    """0.0 where two results are the same to the last bit; else the largest difference, relative to its array."""
    if isinstance(expected, dict):
        if set(actual) != set(expected):
            return float("inf")
        return max((difference(actual[key], expected[key]) for key in expected), default=0.0)
    if isinstance(expected, list | tuple):
        if len(actual) != len(expected):
            return float("inf")
        return max((difference(a, b) for a, b in zip(actual, expected, strict=True)), default=0.0)
    a, b = np.asarray(actual), np.asarray(expected)
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    if a.tobytes() == b.tobytes():
        return 0.0
    scale = float(np.max(np.abs(b.astype("float64")))) or 1.0
    return float(np.max(np.abs(a.astype("float64") - b.astype("float64")))) / scale


def measure(name: str, kind: str, count: int, folder: Path) -> dict[str, Any]:
    """Runs a training undisturbed and with faults, and compares."""
    random = np.random.default_rng([SEED, TRAININGS.index(name), kind == "memory"])
    dropout = 0.2 if kind == "process" else 0.0
    undisturbed = Run(name, folder / "undisturbed", dropout, {})
    if undisturbed.result is None:
        raise SystemExit(f"{name}: the undisturbed run failed with exit code {undisturbed.code}")
    batches = len(undisturbed.result["batches"])
    faults = (process_faults if kind == "process" else memory_faults)(batches, random, count)
    run = Run(name, folder / kind, dropout, faults)
    own = undisturbed.restarts[0]
    off = float("inf") if run.result is None else difference(run.result, undisturbed.result)
    return {
        "training": name,
        "faults": kind,
        "happened": len(run.faults) - len(run.left) if kind == "process" else run.missed(),
        "deaths": run.deaths,
        "batches": batches,
        "batches_seen": 0 if run.result is None else len(run.result["batches"]),
        "largest_difference": off,
        "right": off == 0.0 if kind == "process" else off <= ROUNDING,
        "own_start_s": own,
        "restart_beyond_own_start_s": [seconds - own for seconds in run.restarts[1:]],
        "seconds": run.seconds,
        "told": run.told + run.shortages,
    }


def _line(row: dict[str, Any]) -> str:
    return (
        f"  {row['training']}: {row['happened']} {row['faults']} faults, {'ok' if row['right'] else 'WRONG'}"
    )


def main() -> None:
    """Measures what is asked for, adds it to what was measured before, and prints all of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--training", choices=TRAININGS, help="this one only")
    parser.add_argument("--kind", choices=KINDS, help="faults of this kind only")
    parser.add_argument("--faults", type=int, default=len(PROCESS_FAULTS), help="at most so many in a run")
    parser.add_argument(
        "--results", type=Path, default=RESULTS / "chaos.json", help="the file to add them to"
    )
    args = parser.parse_args()
    os.environ.update(arena_environment(ARENA), TF_CPP_MIN_LOG_LEVEL="3")
    known = json.loads(args.results.read_text())["figures"] if args.results.exists() else []
    rows = {(row["training"], row["faults"]): row for row in known}
    for kind in KINDS if args.kind is None else [args.kind]:
        for name in TRAININGS if args.training is None else [args.training]:
            with tempfile.TemporaryDirectory() as folder:
                row = rows[name, kind] = measure(name, kind, args.faults, Path(folder))
            print(_line(row), flush=True)
            args.results.write_text(
                json.dumps({"machine": machine(), "figures": list(rows.values())}, indent=2) + "\n"
            )
    head = ["training", "faults", "happened", "deaths", "batches", "largest difference", "slowest restart"]
    cells = [
        [
            row["training"],
            row["faults"],
            row["happened"],
            row["deaths"],
            f"{row['batches_seen']} of {row['batches']}",
            "none" if row["largest_difference"] == 0 else f"{row['largest_difference']:.1e}",
            f"{max(row['restart_beyond_own_start_s'], default=0):+.1f} s",
        ]
        for row in rows.values()
    ]
    print(table(cells, head=head, right=[2, 3, 4, 5, 6]))
    happened, right = (sum(row[name] for row in rows.values()) for name in ("happened", "right"))
    print(f"\n{happened} faults; {len(rows) - right} of {len(rows)} runs wrong.")
    print("Slowest restart: seconds beyond the script's own start. Wanted: 0 wrong, restarts under 10 s.")
    print(f"Written to {args.results}")
    sys.exit(right < len(rows))


if __name__ == "__main__":
    main()
