"""What changed between two runs, estimates or plans: `memfit compare`."""

import json
from pathlib import Path

import pytest

from browser import browse, needs_browser
from memfit.cli.main import main
from memfit.sizes import Size
from memfit.training.records.files import write_record
from reporting.sample_runs import INJECTED, MIB, a_plan, a_run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEMFIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    before = a_run(id="aaaaaa", device_peak=Size(300 * MIB))
    after = a_run(id="bbbbbb", scale=1.2, begun=1.79e9 + 9, device_peak=Size(330 * MIB), batch_size=80)
    for record in (before, after):
        write_record(record, tmp_path / "runs")
    a_plan().save("plan.json")
    a_plan(scale=0.5, injected=INJECTED).save("smaller.json")
    return tmp_path


def test_two_runs_differ_by_peak_kind_layer_and_facts(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "aaaaaa", "last"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("The measured peak grows from 300 MiB to 330 MiB (+10.0%).")
    lines = [line.split("  ") for line in shown.splitlines()]
    cells = {parts[0]: [part.strip() for part in parts[1:] if part.strip()] for parts in lines}
    assert cells["batch"] == ["64", "80"]
    assert cells["activations"] == ["210 MiB", "252 MiB", "+42 MiB"]
    assert cells["weights"] == ["24 MiB", "24 MiB", "="]
    assert cells["block_1_conv_1"] == ["34 MiB", "41 MiB", "+6.5 MiB"]
    layers = [line[0] for line in lines if line[0].startswith("block_")]
    assert layers == sorted(layers), "the largest change first"
    assert "tensorflow" not in cells, "what is the same is left out"


@pytest.mark.parametrize(("limit", "code"), [("5%", 1), ("9.9", 1), ("10%", 0), ("50%", 0)])
def test_ci_fails_where_the_peak_grows_beyond_a_percentage(
    folder: Path, limit: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "aaaaaa", "bbbbbb", "--fail-if-peak-grows", limit]) == code
    assert ("That is more than" in capsys.readouterr().out) == bool(code)
    assert main(["compare", "bbbbbb", "aaaaaa", "--fail-if-peak-grows", limit]) == 0


def test_plans_and_estimates_are_compared_by_their_predictions(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "plan.json", "smaller.json", "--json"]) == 0
    plans = json.loads(capsys.readouterr().out)
    assert plans["peak"]["of"] == "predicted"
    assert plans["kinds"]["activations"] == pytest.approx({"before": 210 * MIB, "after": 105 * MIB}, rel=0.01)
    assert INJECTED in plans["layers"]
    estimate = {
        "phase": "train",
        "batch_size": 8,
        "peak": 100 * MIB,
        "needed": 110 * MIB,
        "breakdown": {"weights": 40 * MIB, "activations": 60 * MIB},
        "shares": [{"layer": "dense", "kind": "activations", "bytes": 60 * MIB}],
    }
    Path("estimate.json").write_text(json.dumps(estimate))
    assert main(["compare", "estimate.json", "plan.json"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("The predicted peak grows from 100 MiB to 306 MiB")
    assert "dense" in shown
    record = next((folder / "runs").glob("*-aaaaaa.json"))
    assert main(["compare", str(record), "plan.json"]) == 0
    assert "The predicted peak is the same: 306 MiB." in capsys.readouterr().out


def test_what_cannot_be_compared_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_record(a_run(id="cccccc", plan=None, device_peak=None), folder / "runs")
    assert main(["compare", "aaaaaa", "cccccc"]) == 0
    assert "cannot be compared" in capsys.readouterr().out
    assert main(["compare", "aaaaaa", "cccccc", "--fail-if-peak-grows", "5%"]) == 2
    Path("other.json").write_text("[]")
    for name in ("other.json", "missing.json", "zzzz"):
        assert main(["compare", "aaaaaa", name]) == 2
    assert main(["compare", "aaaaaa", "bbbbbb", "--fail-if-peak-grows", "much"]) == 2
    assert "a percentage" in capsys.readouterr().err


@needs_browser
def test_the_page_shows_both_sides_and_keeps_names_text(folder: Path) -> None:
    assert main(["compare", "plan.json", "smaller.json", "--html", "diff.html"]) == 0
    assert main(["compare", "plan.json", "smaller.json", "--html", "diff.html"]) == 2, "it exists"
    with browse() as tab:
        for width in (1300, 600):
            tab.open(Path("diff.html"), width=width)
            assert not tab.run("document.documentElement.scrollWidth > innerWidth")
        assert "activations\nbefore 210 MiB, after 104 MiB" in tab.hover(
            ".mf-track[aria-label^='activations']"
        )
        assert tab.run("document.title") == "memfit compare: plan plan.json, plan smaller.json"
        assert "<script>" in tab.run("document.body.textContent")
        assert (tab.problems, tab.requests) == ([], [])
