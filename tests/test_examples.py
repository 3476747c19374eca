"""The examples run, in their small form, in one arena: a fork of a process that has TensorFlow."""

import json
import re
from pathlib import Path

import pytest

from prepared import in_arena

ROOT = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(
    script.name for script in ROOT.glob("*.py") if script.name != "demo.py"
)  # `make demo` has its own size
# `make test-all` runs the others, too.
FIRST = ["fit_in_memory.py", "will_it_fit.py"]
OTHERS = [name for name in SCRIPTS if name not in FIRST]
NOTEBOOK = "notebook_runs_out.ipynb"


def run_scripts(names: list[str], folder: str) -> dict[str, tuple[str, str]]:
    """Runs scripts in a folder; what each printed, and what it failed with."""
    import contextlib
    import io
    import os
    import runpy
    import sys
    import traceback

    import keras

    os.chdir(folder)
    os.environ["EXAMPLE_SMALL"] = "1"
    results = {}
    for name in names:
        out, failure = io.StringIO(), ""
        sys.argv = [name]
        try:
            with contextlib.redirect_stdout(out):
                runpy.run_path(str(ROOT / name), run_name="__main__")
        except BaseException:
            failure = traceback.format_exc()
        keras.backend.clear_session()
        results[name] = (out.getvalue(), failure)
    return results


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    return in_arena(run_scripts, FIRST, str(tmp_path_factory.mktemp("examples")), memory="400MiB")


@pytest.fixture(scope="module")
def other_results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    return in_arena(run_scripts, OTHERS, str(tmp_path_factory.mktemp("examples")), memory="400MiB")


@pytest.mark.timeout(1800)  # all of them run in the time of the first
@pytest.mark.parametrize("name", FIRST)
def test_an_example_runs_in_its_small_form(results: dict[str, tuple[str, str]], name: str) -> None:
    _check(results[name])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", OTHERS)
def test_another_example_runs_in_its_small_form(other_results: dict[str, tuple[str, str]], name: str) -> None:
    _check(other_results[name])


def _check(result: tuple[str, str]) -> None:
    printed, failure = result
    assert not failure, failure
    assert printed


def test_examples_are_short_and_the_gallery_has_them_all() -> None:
    assert len(SCRIPTS) >= 8
    assert {name: len((ROOT / name).read_text().splitlines()) for name in SCRIPTS if _lines(name) >= 80} == {}
    gallery = (ROOT / "README.md").read_text()
    linked = set(re.findall(r"\]\(([\w-]+\.(?:py|ipynb))\)", gallery))
    assert linked == {file.name for pattern in ("*.py", "*.ipynb") for file in ROOT.glob(pattern)}


def _lines(name: str) -> int:
    return len((ROOT / name).read_text().splitlines())


def test_pictures_of_the_gallery_are_there() -> None:
    gallery = (ROOT / "README.md").read_text()
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", gallery)
    assert pictures
    assert [picture for picture in pictures if not (ROOT / picture).exists()] == []


def run_cells(folder: str) -> str:
    """Runs the cells of the second notebook, those with magics left out; what it failed with."""
    import os
    import traceback

    os.chdir(folder)
    names: dict[str, object] = {"__name__": "__main__"}
    try:
        for cell in json.loads((ROOT / NOTEBOOK).read_text())["cells"]:
            code = "".join(cell["source"])
            if cell["cell_type"] == "code" and "%" not in code:
                exec(compile(code, NOTEBOOK, "exec"), names)
    except BaseException:
        return traceback.format_exc()
    return ""


def test_the_second_notebook_runs(tmp_path: Path) -> None:
    assert in_arena(run_cells, str(tmp_path), memory="400MiB") == ""
