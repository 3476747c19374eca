"""What all tests share."""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import prepared
from browser import NO_BROWSER

prepared.install()
os.environ["MEMFIT_CACHE"] = "0"  # an estimate is made, not remembered, unless a test is about that
os.environ["MEMFIT_RUNS"] = "0"  # no record is written into the home of whoever runs the tests
# XLA compiles small networks for seconds each. What its buffers are does not depend on how good the code is.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

# A worker takes whole files, because recordings are shared in them. The longest come first, so that none of them is
# what all others wait for in the end.
_LONGEST = (
    "survival/test_supervising.py",
    "training/test_gradients.py",
    "steps/test_micro_batches.py",
    "scaling/test_surviving.py",
    "estimation/test_estimate.py",
    "data/test_images.py",
    "test_fuzz.py",
    "training/test_guard.py",
    "steps/test_rematerialisation.py",
    "survival/test_resuming.py",
    "training/test_fitting.py",
    "scaling/test_exactness.py",
    "scaling/test_sharded_state.py",
    "scaling/test_reading.py",
    "steps/test_rematerialisation_parts.py",
    "slimming/test_variants.py",
    "planning/test_planning.py",
    "planning/test_new_lever.py",
    "test_docs.py",
    "test_benchmarks.py",
    "test_examples.py",
    "planning/test_explaining.py",
)


@pytest.fixture
def in_float64() -> Iterator[None]:
    """Lets Keras compute in float64, where a difference is no rounding: a policy that was set hides `floatx`."""
    import keras

    before = keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy(before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the tests of the longest files first, and marks those of `slow.txt`, which `make test` leaves out."""
    here = Path(__file__).parent
    listed = (here / "slow.txt").read_text().splitlines()
    slow = {line for line in listed if line and not line.startswith("#")}

    def place(item: pytest.Item) -> int:
        name = str(item.path.relative_to(here))
        return _LONGEST.index(name) if name in _LONGEST else len(_LONGEST)

    for item in items:
        name = item.nodeid.removeprefix("tests/")
        if slow & {name, name.partition("[")[0], name.partition("::")[0]}:
            item.add_marker("slow")
    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Keeps what imports have made out of garbage collections: memfit asks for many, and looked at it each time."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Says loudly that pages were not looked at: a line among the skipped is read by nobody."""
    missed = [
        report for report in terminalreporter.stats.get("skipped", ()) if NO_BROWSER in str(report.longrepr)
    ]
    if missed:
        terminalreporter.section("BROWSER TESTS DID NOT RUN", sep="!", red=True, bold=True)
        terminalreporter.line(f"{len(missed)} tests of pages: {NO_BROWSER}. apt-get install chromium")


@pytest.fixture(autouse=True, scope="module")
def functions_of_this_file_can_be_isolated(request: pytest.FixtureRequest) -> Iterator[None]:
    """Lets `memfit.isolated` run functions of a test file, which is no importable module, by sending their code."""
    module = sys.modules[request.module.__name__]
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)
