"""Every benchmark starts and comes to its end in its smoke form."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# All of them run in the time of one test; a loaded machine takes several times the minute of an idle one.
pytestmark = pytest.mark.timeout(1800)
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
# What is started by hand; other files hold what these share, or are started by them.
STARTED_BY_OTHERS = {"chaos/training.py", "gpu_compiler/until_buffers.py", "data/photos.py"}
# It kills processes, and so has a test in tests/survival.
STARTED_BY_OTHERS |= {"chaos/run.py"}
# XLA's compiler for GPUs is not installed here: none of the networks is compiled.
ARGUMENTS = {"gpu_compiler/run.py": ["no-such-network"]}
SCRIPTS = sorted(
    str(file.relative_to(BENCHMARKS))
    for file in BENCHMARKS.glob("*/*.py")
    if '__name__ == "__main__"' in file.read_text()
)

# One process for all of them: importing TensorFlow takes longer than most.
RUNNER = """
import contextlib, io, json, runpy, sys, traceback
from pathlib import Path
outcomes = {}
for script, arguments in json.loads(sys.argv[1]).items():
    path, printed = list(sys.path), io.StringIO()
    sys.argv = [script, *arguments, "--smoke"]
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_path(script, run_name="__main__")
        outcome = ""
    except SystemExit as ending:
        outcome = f"exit code {ending.code}" if ending.code else ""
    except BaseException:
        outcome = traceback.format_exc()
    outcomes[script] = [outcome, printed.getvalue()]
    sys.path[:] = path
    for name, module in list(sys.modules.items()):  # benchmarks have files of equal names
        if "/benchmarks/" in str(getattr(module, "__file__", "")):
            del sys.modules[name]
Path(OUT).write_text(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    out = tmp_path_factory.mktemp("benchmarks") / "outcomes.json"
    scripts = {
        str(BENCHMARKS / name): ARGUMENTS.get(name, []) for name in SCRIPTS if name not in STARTED_BY_OTHERS
    }
    code = f"OUT = {str(out)!r}\n{RUNNER}"
    command = [sys.executable, "-c", code, json.dumps(scripts)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert out.exists(), done.stderr[-4000:]
    found: dict[str, list[str]] = json.loads(out.read_text())
    return found


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name not in STARTED_BY_OTHERS])
def test_a_benchmark_runs_in_its_smoke_form(outcomes: dict[str, list[str]], name: str) -> None:
    failure, printed = outcomes[str(BENCHMARKS / name)]
    assert not failure, failure
    assert printed.strip()  # a table


def test_a_smoke_run_leaves_the_results_alone(outcomes: dict[str, list[str]]) -> None:
    command = ["git", "status", "--porcelain", "benchmarks/results"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=BENCHMARKS.parent)
    assert done.stdout == ""
