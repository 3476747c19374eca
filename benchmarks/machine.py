"""What every result file says about where it was measured, and how results are written."""

import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


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
    }


def write(name: str, figures: Any) -> Path:
    """Writes figures to `benchmarks/results/NAME.json` and returns the file."""
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{name}.json"
    file.write_text(json.dumps({"machine": machine(), "figures": figures}, indent=2) + "\n")
    return file
