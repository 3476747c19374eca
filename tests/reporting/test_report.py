"""The report of a run: what it says, and what it must never do."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from browser import Page, browse, needs_browser
from memfit.cli.main import main
from memfit.planning.fidelity import Fidelity
from memfit.reporting.html import data_script, element, table
from memfit.reporting.report import report_page
from memfit.reporting.verdict import judge
from memfit.sizes import Size
from memfit.steps.recipe import Recipe
from memfit.training.records.files import write_record
from memfit.training.records.record import (
    DIED,
    OUT_OF_MEMORY,
    REFUSED,
    RUNNING,
    Mark,
    RunRecord,
    Series,
    this_process,
)
from reporting.sample_runs import INJECTED, MIB, a_plan, a_run


def _text(page: str) -> str:
    """A page's text, without style, scripts and tags."""
    body = re.sub(r"<(style|script).*?</\1>", " ", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", body))


def test_whatever_is_put_into_an_element_is_text() -> None:
    assert element("td", "<b>&", title='"x"') == '<td title="&quot;x&quot;">&lt;b&gt;&amp;</td>'
    assert "<b>" not in table([["<b>"]], head=["<b>"])
    assert element("p", element("b", "<")) == "<p><b>&lt;</b></p>"
    script = data_script("d", {"tips": ["</script><script>alert(1)</script>"]})
    assert script.count("</script>") == 1
    assert json.loads(script.partition(">")[2].rpartition("<")[0])["tips"][0].startswith("</script>")


def test_the_verdict_comes_first_with_predicted_and_measured() -> None:
    record = a_run()
    text = _text(report_page(record))
    first = text.index("Finished after 10 min: peak 297 MiB of 400 MiB on CPU:0")
    assert first < text.index("In figures") < text.index("Memory over the run") < text.index("Environment")
    assert "Predicted 306 MiB, measured 297 MiB (-3.0%). Stock Keras would have taken 910 MiB" in text
    assert "Not exact (near)" in text
    assert "Memory ran out twice" in text
    assert "The process died once" in text


def test_it_tells_levers_with_reasons_findings_events_and_the_environment() -> None:
    text = _text(report_page(a_run()))
    for told in (
        "4 micro-batches of 16: BatchNormalization sees fewer samples",
        "not needed: the levers above are enough, and more faithful or faster",
        "shuffle-after-batch",
        "failed to allocate 16 MiB for layer `block_1_conv_1`",
        "The process was killed (SIGKILL)",
        "2.21.0",
        "TF_FORCE_GPU_ALLOW_GROWTH",
        "block_4_conv_3",
    ):
        assert told in text


@pytest.mark.parametrize(
    ("changes", "level", "says"),
    [
        (
            {"marks": (), "restarts": 0, "plan": replace(a_plan(), fidelity=Fidelity.EXACT)},
            "good",
            "Finished",
        ),
        ({"outcome": RUNNING, "ended": None, "process": this_process()}, "warn", "Still running"),
        ({"outcome": RUNNING, "ended": None}, "bad", "Died"),
        ({"outcome": DIED, "says": "Killed."}, "bad", "Died"),
        ({"outcome": OUT_OF_MEMORY, "says": "No room for 16 MiB."}, "bad", "Out of memory"),
        ({"outcome": REFUSED, "plan": None, "steps": 0, "says": "Nothing fits."}, "bad", "Refused"),
    ],
)
def test_every_end_has_its_verdict(changes: dict[str, object], level: str, says: str) -> None:
    verdict = judge(a_run(**changes))
    assert (verdict.level, verdict.headline.split(" after")[0].split(":")[0]) == (level, says)
    assert str(changes.get("says", "")) in " ".join(verdict.sentences)


def test_a_refusal_shows_the_closest_plan_and_says_that_nothing_was_trained() -> None:
    plan = replace(a_plan(), predicted=Size(500 * MIB))
    says = 'It does not fit. With allow="precision" this batch would fit.'
    text = _text(report_page(a_run(outcome=REFUSED, says=says, plan=plan, steps=0, device_peak=None)))
    assert "Refused: nothing was trained" in text
    assert "With --allow precision this batch would fit" in text, "a command's advice is flags"
    assert "The closest allowed plan takes 500 MiB of 400 MiB (predicted)" in text
    assert "--allow precision would be needed: activations in float16" in text
    for untrue in ("ran as in stock Keras", "Memory over the run", "a step of stock Keras"):
        assert untrue not in text


def test_a_shortage_that_was_answered_by_a_near_step_makes_a_run_not_exact() -> None:
    done = "Rolled back, and trained again in micro-batches of 64 (near, not exact: batch statistics)."
    marks = (Mark(1.0, "out of memory", f"Out of memory in training, batch 1. {done}", 0, 0),)
    bound = replace(a_plan(), is_bound=True, fidelity=Fidelity.EXACT, recipe=Recipe(), levers=())
    record = a_run(plan=bound, marks=marks, restarts=0)
    assert judge(record).level == "warn"
    assert any(told.startswith("Not exact") for told in judge(record).sentences)
    text = _text(report_page(record))
    assert "None was planned. The events say what was changed when memory ran out." in text
    assert "ran as in stock Keras" not in text


def test_the_host_is_predicted_and_what_the_figure_is_made_of_is_told() -> None:
    page = report_page(a_run(host_parts={"before": 560 * MIB, "the input pipeline": 40 * MIB}))
    assert "predicted peak 600 MiB" in _text(page)
    assert "predicted: 560 MiB before, 40 MiB the input pipeline" in _text(page)
    assert "measured, resident" in page


def test_a_loop_of_one_s_own_is_not_told_what_does_not_hold_for_it() -> None:
    text = _text(report_page(a_run(call=-1, plan=None, findings=None, facts={})))
    assert "memfit cannot change a custom loop" in text.replace("&#x27;", "'")
    for untrue in ("memfit estimate", "ran as in stock Keras"):
        assert untrue not in text


def test_a_run_of_which_little_is_known_has_a_page_as_well() -> None:
    bare = RunRecord(id="000000", begun=1.79e9, updated=1.79e9, process=this_process())
    text = _text(report_page(bare))
    assert "Nothing was predicted: there was no plan." in text
    assert "No memory was measured over time." in text
    bound = replace(a_plan(), is_bound=True, timeline=None, recipe=Recipe(), levers=())
    text = _text(report_page(a_run(plan=bound)))
    assert "at most" in text
    assert "The job clearly fits, so no step was recorded" in text
    uncounted = Series((1.0, 2.0), (None, None), (5 * MIB, 6 * MIB), (1, 2))
    assert "does not count" in _text(report_page(a_run(series=uncounted, device_peak=None)))
    compiled = replace(a_plan().timeline, positions=(), sums=(), kinds=(), top=0)  # type: ignore[type-var]
    assert "block_1_conv_1" in report_page(a_run(plan=replace(a_plan(), timeline=compiled)))


def test_between_a_death_and_the_next_process_no_memory_is_drawn() -> None:
    series = Series((1.0, 2.0, 8.0, 9.0), (MIB, MIB, MIB, MIB), (MIB, MIB, MIB, MIB), (1, 2, 3, 4))
    marks = (Mark(3.0, "death", "SIGKILL"), Mark(4.0, "restart"))
    record = a_run(series=series, marks=marks, begun=0.0, ended=10.0, plan=None, memory=None)
    (line, *_) = re.findall(r'd="M([^"]*)" fill="none"', report_page(record))
    x, y = zip(*(map(float, point.split()) for point in line.split("L")), strict=True)
    assert x == (100, 200, 300, 300, 800, 800, 900)
    assert [height == 1000 for height in y] == [False, False, False, True, True, False, False]


def test_it_is_small_and_asks_for_nothing() -> None:
    page = report_page(a_run())
    assert len(page.encode()) < 300_000
    assert not re.findall(r"https?://|<link|<img|src=|url\(|@import", page)


def test_a_name_that_is_a_script_stays_text() -> None:
    page = report_page(a_run(injected=INJECTED))
    assert INJECTED not in page
    assert INJECTED.replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#x27;") in page


def test_the_command_writes_the_last_run_and_overwrites_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MEMFIT_RUNS", str(tmp_path / "runs"))
    assert main(["report"]) == 2
    assert "memfit runs" in capsys.readouterr().err
    write_record(a_run(), tmp_path / "runs")
    assert main(["report"]) == 0
    assert "written to memfit-report-3fa9c1.html" in capsys.readouterr().out
    assert "Finished" in (tmp_path / "memfit-report-3fa9c1.html").read_text()
    assert main(["report", "3fa9"]) == 2
    assert main(["report", "3fa9", "--force"]) == 0
    assert main(["report", "3fa9", "--output", "mine.html"]) == 0


@pytest.fixture(scope="module")
def tab() -> Page:
    with browse() as page:
        yield page


@pytest.fixture
def pages(tmp_path: Path) -> dict[str, Path]:
    made = {"long": a_run(50), "injected": a_run(3, injected=INJECTED)}
    for name, record in made.items():
        (tmp_path / f"{name}.html").write_text(report_page(record))
    return {name: tmp_path / f"{name}.html" for name in made}


# Pairs of texts that lie over each other, and whether the page is wider than the window.
_OVERLAPS = """(() => {
  const texts = [...document.querySelectorAll('.mf-y span, .mf-x span, .mf-legend span, .mf-name, .mf-size, .mf-lane-name, h1, h2, h3, p, td, th')]
    .map(e => [e, e.getBoundingClientRect()]).filter(([e, b]) => b.width && b.height);
  const over = [];
  for (let i = 0; i < texts.length; i++) for (let j = i + 1; j < texts.length; j++) {
    const [[e, a], [f, b]] = [texts[i], texts[j]];
    if (e.contains(f) || f.contains(e)) continue;
    const x = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (x > 1 && y > 2) over.push(e.textContent.slice(0, 40) + ' / ' + f.textContent.slice(0, 40));
  }
  return {over, wide: document.documentElement.scrollWidth > innerWidth};
})()"""  # noqa: E501


@needs_browser
@pytest.mark.parametrize("width", [1300, 600])
def test_it_opens_without_errors_and_no_text_lies_over_another(
    tab: Page, pages: dict[str, Path], width: int
) -> None:
    tab.open(pages["long"], width=width)
    found = tab.run(_OVERLAPS)
    assert found["over"] == []
    assert not found["wide"]
    assert (tab.problems, tab.requests) == ([], [])


@needs_browser
def test_hovering_shows_the_layer_the_moment_and_the_event(tab: Page, pages: dict[str, Path]) -> None:
    tab.open(pages["long"])
    bar = tab.hover(".mf-bars .mf-tip[aria-label^='block_1_conv_2'].mf-name + .mf-track > span:nth-child(2)")
    assert "block_1_conv_2" in bar
    assert "activations: 30 MiB" in bar
    assert "of the peak" in bar
    moment = tab.hover("[data-hover=run-device]", at=0.5)
    assert re.fullmatch(r"\d+ MiB\nepoch 2[56], batch \d+ of the run\nat [45]:\d\d", moment)
    assert "at the peak" in tab.hover("[data-hover=step]", at=0.495)
    event = tab.hover(".mf-moment:nth-child(3)")
    assert event.startswith("death\nThe process was killed")
    assert tab.run("document.querySelectorAll('.mf-moment').length") == 4
    assert tab.run("document.querySelectorAll('.mf-band').length") == 100


@needs_browser
def test_it_is_dark_where_the_reader_likes_it_dark(tab: Page, pages: dict[str, Path]) -> None:
    colours = []
    for dark in (False, True):
        tab.open(pages["long"], dark=dark)
        colours.append(
            tab.run(
                "['background-color', 'color'].map(c => getComputedStyle(document.body).getPropertyValue(c))"
            )
        )
    assert colours == [["rgb(255, 255, 255)", "rgb(27, 31, 36)"], ["rgb(20, 23, 28)", "rgb(228, 231, 235)"]]


@needs_browser
def test_an_injected_name_is_shown_and_never_runs(tab: Page, pages: dict[str, Path]) -> None:
    tab.open(pages["injected"])
    assert tab.run("document.title") == "memfit report 3fa9c1"
    assert INJECTED in tab.run("document.querySelector('h1').textContent")
    assert "injected" in tab.hover(".mf-bars .mf-tip[aria-label^='<script']")
    assert tab.run("document.title") == "memfit report 3fa9c1"
    assert tab.run("document.querySelectorAll('script').length") == 4  # three of data, one of the page
    assert tab.problems == []
