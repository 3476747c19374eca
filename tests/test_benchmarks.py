"""Every benchmark starts and comes to its end in its smoke form."""

import subprocess
from pathlib import Path

import pytest

from prepared import run_forked

# All of them run in the time of one test; a loaded machine takes several times the minute of an idle one.
pytestmark = pytest.mark.timeout(1800)
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
# What is started by hand; other files hold what these share, or are started by them.
STARTED_BY_OTHERS = {"chaos/training.py", "gpu_compiler/until_buffers.py", "data/photos.py"}
# It kills processes, and so has a test in tests/survival.
STARTED_BY_OTHERS |= {"chaos/run.py"}
# It measures nothing: `make check` runs it.
STARTED_BY_OTHERS |= {"page/write.py", "page/picture.py"}
# What it does to ranks is a test of tests/scaling (test_surviving.py).
STARTED_BY_OTHERS |= {"scale/run_faults.py", "scale/faulty_training.py"}
# XLA's compiler for GPUs is not installed here: none of the networks is compiled.
ARGUMENTS = {"gpu_compiler/run.py": ["no-such-network"]}
SCRIPTS = sorted(
    str(file.relative_to(BENCHMARKS))
    for file in BENCHMARKS.glob("*/*.py")
    if '__name__ == "__main__"' in file.read_text()
)


def run_all(scripts: dict[str, list[str]]) -> dict[str, list[str]]:
    """Runs benchmarks, one behind the other: what each failed with, and what it printed."""
    import contextlib
    import io
    import runpy
    import sys
    import traceback

    outcomes = {}
    for script, arguments in scripts.items():
        path, printed = list(sys.path), io.StringIO()
        sys.argv = [script, *arguments, "--smoke"]
        outcome = ""
        try:
            with contextlib.redirect_stdout(printed):
                runpy.run_path(script, run_name="__main__")
        except SystemExit as ending:
            outcome = f"exit code {ending.code}" if ending.code else ""
        except BaseException:
            outcome = traceback.format_exc()
        outcomes[script] = [outcome, printed.getvalue()]
        sys.path[:] = path
        for name, module in list(sys.modules.items()):  # benchmarks have files of equal names
            if "/benchmarks/" in str(getattr(module, "__file__", "")):
                del sys.modules[name]
    return outcomes


# A smoke run of these takes a few seconds; `make test-all` runs the others, too.
QUICK = {"estimate/run.py", "fit/micro_batches.py", "gpu_compiler/run.py"}


def _run(names: list[str]) -> dict[str, list[str]]:
    """What becomes of some: one process runs them all, and forks record, as imports take longer than most."""
    return run_forked(
        run_all,
        {str(BENCHMARKS / name): ARGUMENTS.get(name, []) for name in names},
        TF_ENABLE_ONEDNN_OPTS="0",
    )


def _check(outcomes: dict[str, list[str]]) -> None:
    for name, (failure, printed) in outcomes.items():
        assert not failure, f"{name}: {failure}"
        assert printed.strip(), name  # a table
    command = ["git", "status", "--porcelain", "benchmarks/results"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=BENCHMARKS.parent)
    assert done.stdout == "", "a smoke run leaves the results alone"


def test_quick_benchmarks_run_in_their_smoke_form() -> None:
    _check(_run(sorted(QUICK)))


def test_the_other_benchmarks_run_in_their_smoke_form() -> None:
    _check(_run([name for name in SCRIPTS if name not in STARTED_BY_OTHERS | QUICK]))
