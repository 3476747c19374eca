"""`import memfit` and help come before TensorFlow and take milliseconds."""

import doctest
import importlib
import resource
import subprocess
import sys

import pytest

import memfit


def _best_seconds(*command: str) -> float:
    """The processor's time, which other work on the machine does not stretch as it does the clock's."""
    times = []
    for _ in range(7):
        begun = _children_seconds()
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        times.append(_children_seconds() - begun)
    return min(times)


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_importing_memfit_costs_a_small_multiple_of_a_bare_interpreter() -> None:
    assert _best_seconds("-c", "import memfit") < 2 * _best_seconds("-c", "pass")


def test_help_costs_a_small_multiple_of_what_any_command_line_imports() -> None:
    least = _best_seconds("-c", "import argparse, json, pathlib")
    for args in (["--help"], ["doctor", "--help"]):
        assert _best_seconds("-m", "memfit", *args) < 4 * least, args


def test_neither_import_nor_help_loads_tensorflow_or_keras() -> None:
    code = (
        "import sys, memfit\n"
        "from memfit.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(bool({'tensorflow', 'keras', 'rich', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_every_public_name_can_be_loaded_and_unknown_ones_say_so() -> None:
    for name in memfit.__all__:
        assert getattr(memfit, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        memfit.fitt  # noqa: B018 - the lookup is what is tested


@pytest.mark.parametrize("module", ["memfit.sizes", "memfit.budgets.isolation", "memfit.tables"])
def test_examples_in_docstrings_hold(module: str) -> None:
    failed, attempted = doctest.testmod(importlib.import_module(module))
    assert attempted
    assert not failed
