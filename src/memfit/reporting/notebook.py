"""memfit's objects in a notebook: the same figures as their `repr`, as tables and bars."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from memfit.reporting.html import Html, element, join, table
from memfit.reporting.pages import fragment
from memfit.reporting.plots import KIND_COLOURS, colour_of, legend, percent
from memfit.sizes import Size

if TYPE_CHECKING:  # a budget is shown without importing TensorFlow
    from memfit.budgets.budget import Budget
    from memfit.data.linting.findings import Findings
    from memfit.estimation.estimate import Estimate
    from memfit.planning.plan import Plan
    from memfit.slimming.slimmed import Slimmed
    from memfit.training.monitoring.record import MemoryRecord
    from memfit.training.records.record import RunRecord
    from memfit.training.run import Run


def render(shown: Any) -> Html:
    """Returns an object as HTML for a notebook, with its style; its `repr` where it has no view of its own."""
    for base in type(shown).__mro__:
        if base.__name__ in _VIEWS:
            return fragment(_VIEWS[base.__name__](shown))
    return fragment(element("pre", repr(shown)))


def _show_budget(budget: "Budget") -> Html:
    rows = [
        [memory.name, memory.total, memory.free, _draw_use(memory.total, memory.free), memory.source]
        for memory in (*budget.devices, budget.host)
    ]
    return table(rows, head=["memory", "total", "free", "in use", "source"], right=[1, 2])


def _draw_use(total: Size, free: Size) -> Html:
    used = 1 - free / total if total else 0.0
    bar = element("span", style=f"left:0;width:{percent(used)};background:var(--mf-measured)")
    return element("div", bar, class_="mf-track mf-tip", style="width:140px", title=f"{used:.0%} in use")


def _show_estimate(estimate: "Estimate") -> Html:
    where = "" if estimate.device is None else f", {estimate.device.name}"
    title = f"{estimate.phase}, batch {estimate.batch_size}{where}: peak {estimate.peak}"
    largest = [[t.bytes, t.kind, t.layer or t.op or t.shape] for t in estimate.top(5)]
    return join(
        [
            element(
                "p", title, f" ({estimate.prediction.told_by}), needs {estimate.needed}", class_="mf-title"
            ),
            _draw_kinds(estimate.breakdown),
            *(element("p", remark) for remark in estimate.prediction.remarks),
            element("p", f"source: {estimate.source}", class_="mf-faint"),
            table(largest, head=["largest at the peak", "kind", "layer or op"], right=[0]),
        ]
    )


def _draw_kinds(breakdown: Mapping[str, int]) -> Html:
    """What a peak is made of: one bar, and its legend with the figures."""
    whole = sum(breakdown.values()) or 1
    parts, left = [], 0.0
    kinds = [kind for kind in KIND_COLOURS if breakdown.get(kind)]
    for kind in kinds:
        width = breakdown[kind] / whole
        style = f"left:{percent(left)};width:{percent(width)};background:{colour_of(kind)}"
        parts.append(element("span", class_="mf-tip", title=f"{kind}: {Size(breakdown[kind])}", style=style))
        left += width
    told = [
        (f"{kind} {Size(breakdown[kind])} ({breakdown[kind] / whole:.0%})", colour_of(kind), "area")
        for kind in kinds
    ]
    bar = element("div", *parts, class_="mf-track", style="height:20px;max-width:760px")
    return join([bar, legend(*told)])


def _show_plan(plan: "Plan") -> Html:
    from memfit.reporting.report import lever_table

    known = "at most" if plan.is_bound else "predicted"
    what = "as stock Keras: no lever is needed" if plan.changes_nothing else str(plan.fidelity)
    kept = f", {plan.margin} kept free" if plan.margin else ""
    facts: list[list[object]] = [
        ["batch", plan.batch_size],
        ["memory", plan.memory],
        ["stock peak", f"{plan.stock} ({known})"],
        ["planned peak", f"{plan.predicted} ({known}{kept})"],
        ["step time", f"{plan.time:.2f}x stock's (predicted)"],
        ["fidelity", element("b", what) if plan.fidelity else what],
        ["source", plan.source],
    ]
    return join(
        [
            table(facts),
            None if plan.timeline is None else _draw_kinds(plan.timeline.breakdown),
            lever_table(plan) if plan.levers else None,
        ]
    )


def _show_slimmed(slimmed: "Slimmed") -> Html:
    known, *rows = slimmed.cells
    faint = [element("span", cell, class_="mf-faint") for cell in known]
    named = [[element("span", row[0], style="white-space:nowrap"), *row[1:]] for row in rows]
    level = "mf-good" if slimmed.fitting else "mf-warn"
    return join(
        [
            element("p", f"Variants at batch {slimmed.batch_size}", class_="mf-title"),
            element("p", slimmed.verdict, class_=level) if slimmed.verdict else None,
            table([faint, *named], head=slimmed.head, right=range(1, len(known))),
            _fold("notes", join([element("p", remark) for remark in slimmed.remarks])),
        ]
    )


def _show_run(run: "Run") -> Html:
    if run.record is not None and run.record.exists():
        from memfit.training.records.files import read_record

        return _show_record(read_record(run.record))
    rows: list[list[object]] = [
        ["predicted peak", "not predicted" if run.predicted is None else run.predicted],
        ["measured peak", "not measured" if run.measured is None else run.measured],
        *(["event", event] for event in run.events),
    ]
    return join(
        [
            table(rows),
            None if run.monitored is None else _show_memory(run.monitored),
            None if run.plan is None else _fold("the plan", _show_plan(run.plan)),
        ]
    )


def _show_memory(record: "MemoryRecord") -> Html:
    leaks = (element("p", str(growth), class_="mf-warn") for growth in record.growths)
    return join([table(record.rows, head=record.head, right=[0, 2, 3, 4, 5]), *leaks])


def _show_record(record: "RunRecord") -> Html:
    from memfit.reporting.run_timeline import draw_run
    from memfit.reporting.verdict import judge

    verdict = judge(record)
    return join(
        [
            element("p", verdict.headline, class_=f"mf-{verdict.level}"),
            *(element("p", sentence) for sentence in verdict.sentences),
            draw_run(record, name=""),
            None if record.plan is None else _fold("the plan", _show_plan(record.plan)),
            element("p", f"memfit report {record.id}", class_="mf-faint"),
        ]
    )


def _show_findings(findings: "Findings") -> Html:
    from memfit.reporting.report import finding_table

    if not len(findings):
        return element("p", "✓ Nothing to change.", class_="mf-good")
    return finding_table(findings.to_json())


def _fold(title: str, content: Html) -> Html:
    return element("details", element("summary", title), content)


_VIEWS: dict[str, Callable[[Any], Html]] = {
    "Budget": _show_budget,
    "Estimate": _show_estimate,
    "Findings": _show_findings,
    "MemoryRecord": _show_memory,
    "Plan": _show_plan,
    "Run": _show_run,
    "RunRecord": _show_record,
    "Slimmed": _show_slimmed,
}
