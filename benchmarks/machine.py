"""What every result file says about where it was measured, how results are written, and the smoke form.

Every benchmark takes `--smoke`: tiny networks, a round or two, in this process instead of fresh ones, results in a
folder that is thrown away. Its figures mean nothing; it shows that the benchmark still runs.
"""

import atexit
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import memfit
from memfit.budgets.arena import arena_environment

# Far more than any of these runs takes; an OOM on the CPU can hang.
_SECONDS = 1800.0
SMOKE = "--smoke" in sys.argv
RESULTS = Path(__file__).parent / "results"
os.environ["MEMFIT_CACHE"] = "0"  # a figure is measured, not remembered
os.environ["MEMFIT_RUNS"] = "0"  # no records in the home of whoever measures
if SMOKE:
    sys.argv.remove("--smoke")
    RESULTS = Path(tempfile.mkdtemp(prefix="memfit-smoke-"))
    atexit.register(shutil.rmtree, RESULTS, ignore_errors=True)
    os.environ.update(arena_environment("2GiB"))


def isolated(function: Callable[..., Any], *args: Any, memory: int | str | None = None) -> Any:
    """Runs a function in a fresh process, in an arena where a memory is given; a smoke run stays where it is."""
    if SMOKE:
        return function(*args)
    return memfit.isolated(function, *args, memory=memory, timeout=_SECONDS)


def machine() -> dict[str, Any]:
    """Returns the machine and the versions a figure belongs to."""
    import psutil

    return {
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "processor": platform.machine(),
        "gpu": None,
        "python": platform.python_version(),
        "tensorflow": version("tensorflow-cpu"),
        "keras": version("keras"),
        "commit": commit(),
    }


@cache
def commit() -> str:
    """Returns the commit that is measured; with a plus sign where the source has changed since."""
    git = ["git", "-C", str(Path(__file__).parent)]
    name = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "../src"], check=False).returncode
    return name.stdout.strip() + "+" * bool(changed) if name.returncode == 0 else "unknown"


def rows_of(figures: Any) -> list[dict[str, Any]]:
    """Returns the rows of a table; none where the figures are not a table."""
    rows = figures.get("rows", ()) if isinstance(figures, dict) else figures
    return [row for row in rows if isinstance(row, dict)]


def write(name: str, figures: Any) -> Path:
    """Writes figures to `benchmarks/results/NAME.json` and returns the file.

    Some tables go on where they stopped, with another version of the code: every row keeps its commit.
    """
    for row in rows_of(figures):
        row.setdefault("commit", commit())
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{name}.json"
    file.write_text(json.dumps({"machine": machine(), "figures": figures}, indent=2) + "\n")
    return file
