"""`make chaos` starts, and finds a training right whose process was killed."""

import json
import os
import subprocess
import sys
from pathlib import Path

CHAOS = Path(__file__).parents[2] / "benchmarks" / "chaos" / "run.py"


def test_one_training_with_two_faults_ends_as_undisturbed(tmp_path: Path) -> None:
    command = [sys.executable, str(CHAOS), "--training", "recurrent", "--kind", "process", "--faults", "2"]
    done = subprocess.run(
        [*command, "--results", str(tmp_path / "chaos.json")],
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "chaos.json").read_text())["figures"]
    assert row["happened"] == 2
    assert row["right"]
    assert row["batches_seen"] == row["batches"]
    assert "0 of 1 runs wrong" in done.stdout
