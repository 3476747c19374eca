"""Notebooks: a real one is executed, and what it shows is looked at in a browser."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from browser import browse, needs_browser
from prepared import forking_environment
from reporting.sample_runs import INJECTED, a_plan, a_run

pytestmark = pytest.mark.timeout(1800)  # the notebook is executed in the time of the first test
_NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
# Files in place of ports, for the messages between the client and the kernel.
_EXECUTE = """
import sys, nbclient, nbformat
from jupyter_client.manager import AsyncKernelManager
notebook = nbformat.read(sys.argv[1], 4)
kernel = AsyncKernelManager(transport="ipc", kernel_name="python3")
nbclient.NotebookClient(notebook, km=kernel, timeout=900, allow_errors=True).execute()
nbformat.write(notebook, sys.argv[2])
"""
_MORE = {
    "no training": "%%memfit\n3 * 4",
    "error": "%%memfit --memory 4KiB\nmodel.fit(images, labels, verbose=0)",
    "wrong": "%%memfit --memoir 1GiB\n1",
    "progress": (
        "import logging, sys, time\n"
        "from memfit.progress import LOGGER, Progress\n"
        "with Progress(sys.stderr):\n"
        "    logging.getLogger(LOGGER).info('recording')\n"
        "    time.sleep(3)"  # what takes less is not shown at all
    ),
    "as it was": "keras.Model.fit.__code__.co_filename",
}


def _text(output: dict[str, Any]) -> str:
    found = output.get("data", {}).get("text/plain", output.get("text", ""))
    return "".join(found)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What every cell of the example shows, and of some more behind it."""
    folder = tmp_path_factory.mktemp("notebook")
    source = _NOTEBOOK.read_text()
    shorter = {"(512, 48, 48, 3)": "(96, 48, 48, 3)", "arange(512)": "arange(96)"}
    shorter["Conv2D(32, 3,"] = "Conv2D(32, 1,"  # as much memory, in less time
    for long, short in shorter.items():
        assert long in source
        source = source.replace(long, short)
    notebook = json.loads(source)
    template = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    notebook["cells"] += [
        {**template, "id": name.replace(" ", "-"), "source": code} for name, code in _MORE.items()
    ]
    (folder / "in.ipynb").write_text(json.dumps(notebook))
    environment = {
        **os.environ,
        "MEMFIT_RUNS": str(folder / "runs"),
        "MEMFIT_CACHE": "0",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "IPYTHONDIR": str(folder / "ipython"),
        **forking_environment(),
    }
    command = [sys.executable, "-W", "ignore", "-c", _EXECUTE, "in.ipynb", "out.ipynb"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    cells = json.loads((folder / "out.ipynb").read_text())["cells"]
    return {cell["id"]: cell["outputs"] for cell in cells if cell["cell_type"] == "code"}


def _html(outputs: list[dict[str, Any]]) -> str:
    return "".join("".join(output.get("data", {}).get("text/html", "")) for output in outputs)


def test_budget_estimate_plan_findings_and_run_show_themselves(outputs: dict[str, Any]) -> None:
    expected = {
        "budget": "arena&#x27;s cap",
        "estimate": "largest at the peak",
        "plan": "micro-batches",
        "lint": "shuffle-before-cache",
        "run": "Finished after",
    }
    for cell, says in expected.items():
        assert says in _html(outputs[cell]), cell
        assert "<script" not in _html(outputs[cell])


def test_a_cell_trains_through_memfit_with_summary_and_picture_below(outputs: dict[str, Any]) -> None:
    shown = outputs["train"]
    assert [output["output_type"] for output in shown if output["output_type"] == "error"] == []
    assert "data" in shown[-1], "the summary comes last"
    html = _html(shown[-1:])
    assert "Finished after" in html
    assert "of 120 MiB" in html
    assert "<svg" in html
    assert "memfit report" in html
    assert "val_loss" in "".join(map(_text, shown)), "Keras shows its own progress"


def test_progress_of_planning_is_one_line_that_is_gone_at_the_end(outputs: dict[str, Any]) -> None:
    (line,) = outputs["progress"]
    assert (line["output_type"], _text(line)) == ("display_data", ""), "shown, and empty now"
    assert not any("planning," in _text(output) for output in outputs["train"])
    assert not any(output.get("name") == "stderr" for output in outputs["train"])


def test_a_cell_that_fails_or_does_not_train_says_so(outputs: dict[str, Any]) -> None:
    assert [_text(output) for output in outputs["no-training"]] == [
        "memfit: no fit() ended in this cell\n",
        "12",
    ]
    errors = [output["ename"] for output in outputs["error"] if output["output_type"] == "error"]
    assert errors == ["InvalidInput"]
    assert outputs["wrong"][-1]["ename"] == "InvalidInput"
    assert "--memoir" in outputs["wrong"][-1]["evalue"]
    assert "intercepting.py" not in _text(outputs["as-it-was"][-1]), "Keras is as it was before"


@needs_browser
def test_what_it_shows_suits_light_and_dark_notebooks(outputs: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "outputs.html"
    with browse() as tab:
        for width, style in ((1000, "background:#fff;color:#222"), (600, "background:#111;color:#ddd")):
            body = "".join(f"<div>{_html(cell)}</div>" for cell in outputs.values())
            file.write_text(f"<!doctype html><meta charset=utf-8><body style='{style}'>{body}")
            tab.open(file, width=width)
            assert not tab.run("document.documentElement.scrollWidth > innerWidth")
            texts = tab.run("getComputedStyle(document.querySelector('.mf td')).color")
            assert texts == ("rgb(34, 34, 34)" if width == 1000 else "rgb(221, 221, 221)")
        assert tab.run("document.querySelectorAll('.mf-area path').length") > 0
        assert tab.problems == []


def test_names_in_a_notebook_stay_text() -> None:
    for shown in (a_plan(injected=INJECTED), a_run(3, injected=INJECTED)):
        assert "<script" not in shown._repr_html_()


def test_a_budget_is_shown_without_tensorflow() -> None:
    code = "import sys, memfit; memfit.budget()._repr_html_(); print('tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
