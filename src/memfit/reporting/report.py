"""`memfit report`: one run as a page that opens offline: the verdict first, then everything it rests on."""

import time
from typing import Any

from memfit.estimation.step_timeline import StepTimeline
from memfit.planning.plan import Plan
from memfit.reporting.html import Html, element, join, table
from memfit.reporting.pages import page, section
from memfit.reporting.plots import clock
from memfit.reporting.run_timeline import draw_run
from memfit.reporting.runs import describe_seconds
from memfit.reporting.step_picture import draw_layers, draw_lifetimes, draw_step
from memfit.reporting.verdict import judge
from memfit.sizes import Size
from memfit.training.records.record import RunRecord

_TOLD = ("out of memory", "leak", "death", "restart", "note")


def report_page(record: RunRecord) -> Html:
    """Returns the page of a run."""
    verdict = judge(record)
    named = f"{record.model or 'training'}, batch {record.batch_size}" if record.batch_size else record.model
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(record.begun))
    head = [
        element("div", f"memfit report · run {record.id} · {when}", class_="mf-faint"),
        element("h1", named or "training"),
        element(
            "div",
            element("div", verdict.headline, class_="mf-headline"),
            *(element("p", sentence) for sentence in verdict.sentences),
            class_=f"mf-verdict mf-{verdict.level}",
        ),
    ]
    parts = [
        _show_figures(record),
        section("Memory over the run", draw_run(record), _list_events(record)),
        _show_step(record),
        _show_levers(record.plan),
        _show_findings(record.findings),
        _show_environment(record),
    ]
    foot = element(
        "footer", f"memfit {record.versions.get('memfit', '')}. Nothing on this page was sent anywhere."
    )
    return page(f"memfit report {record.id}", *head, *parts, foot)


def _show_figures(record: RunRecord) -> Html:
    """The run in figures; each says whether it is predicted or measured."""
    plan = record.plan
    rows: list[tuple[str, object, str]] = [
        ("peak on the device", _or_unknown(record.device_peak), "measured, TensorFlow's allocator"),
        ("peak as planned", _or_unknown(record.predicted), _source_of_prediction(plan)),
        (
            "peak of stock Keras",
            _or_unknown(None if plan is None else plan.stock),
            _source_of_prediction(plan),
        ),
        ("budget", _or_unknown(record.memory), record.memory_source),
        ("peak of the process on the host", _or_unknown(record.host_peak), "measured, resident"),
        (
            "time",
            describe_seconds(record.seconds),
            f"measured; {record.steps:,} steps, restarts: {record.restarts}",
        ),
    ]
    if record.step_seconds is not None:
        planned = "" if plan is None else f"; planned {plan.time:.2f}x stock's (predicted)"
        rows.append(("a step", describe_seconds(record.step_seconds), f"measured{planned}"))
    if record.first_step_seconds is not None:
        rows.append(
            ("the first step", describe_seconds(record.first_step_seconds), "measured, tracing included")
        )
    return section("In figures", table(rows, head=["", "", "where from"], right=[1]))


def _source_of_prediction(plan: Plan | None) -> str:
    if plan is None:
        return "no plan was made"
    return f"{'upper bound' if plan.is_bound else 'predicted'}: {plan.source}"


def _or_unknown(size: Size | None) -> object:
    return "not known" if size is None else size


def _list_events(record: RunRecord) -> Html | None:
    marks = record.of_kind(*_TOLD)
    if not marks:
        return None
    rows = [
        [clock(mark.seconds), mark.kind, "" if mark.epoch is None else mark.epoch + 1, mark.says]
        for mark in marks
    ]
    return join([element("h3", "Events"), table(rows, head=["at", "what", "epoch", ""], right=[2])])


def _show_step(record: RunRecord) -> Html:
    timeline = record.timeline
    title = "Where the peak comes from (predicted)"
    if timeline is None:
        why = (
            "The job clearly fits, so no step was recorded."
            if record.plan is not None and record.plan.is_bound
            else "No step was recorded for this run."
        )
        return section(title, element("p", why, " memfit estimate shows it for any script."))
    return section(
        title,
        _explain_difference(timeline.peak, record.predicted),
        *_show_course(timeline, record.memory),
        element("h3", "By layer and kind, at the peak"),
        draw_layers(timeline),
        element("h3", "The largest tensors at the peak, and when in the step they live"),
        draw_lifetimes(timeline),
    )


def _explain_difference(step: Size, predicted: Size | None) -> Html | None:
    """Says why the peak of the step is not the plan's."""
    if predicted is None or abs(predicted / step - 1) < 0.02:
        return None
    more = "also counts batches that wait beside the step, and gaps that fill up where memory is tight"
    return element("p", f"The step alone peaks at {step}; the plan's {predicted} {more}.")


def _show_course(timeline: StepTimeline, memory: Size | None) -> list[Html]:
    if not timeline.positions:  # a GPU's compiler does not tell the order of allocations
        return []
    return [element("h3", "One step"), draw_step(timeline, memory, name="step")]


def _show_levers(plan: Plan | None) -> Html:
    if plan is None:
        return section("Levers", element("p", "No plan was made: the training ran as in stock Keras."))
    if not plan.levers:
        return section("Levers", element("p", "None was needed: the training ran as in stock Keras."))
    return section("Levers, used and refused", lever_table(plan))


def lever_table(plan: Plan) -> Html:
    """Returns every lever of a plan with what it saves and costs, and why it is used or not."""
    rows = [
        [
            element("span", "✓" if lever.used else "·", class_="mf-good" if lever.used else "mf-faint"),
            lever.name,
            lever.fidelity,
            f"-{lever.saving}" if lever.saving else "",
            "" if lever.cost is None else f"+{lever.cost:.0%}",
            f"{lever.setting}: {lever.why}" if lever.setting else lever.why,
        ]
        for lever in sorted(plan.levers, key=lambda lever: (not lever.used, lever.fidelity))
    ]
    return table(rows, head=["", "lever", "fidelity", "saves", "time", "why"], right=[3, 4])


def _show_findings(findings: list[dict[str, Any]] | None) -> Html:
    title = "Input pipeline"
    if findings is None:
        return section(title, element("p", "Not looked at. memfit lint does, for any script."))
    if not findings:
        return section(title, element("p", "Nothing to change."))
    return section(title, finding_table(findings))


def finding_table(findings: list[dict[str, Any]]) -> Html:
    """Returns what the linter found, as plain data, as a table."""
    rows = [
        [finding[name] for name in ("rule", "name", "where", "what", "stake", "fix")] for finding in findings
    ]
    return table(rows, head=["rule", "data", "stage", "what", "at stake", "fix"])


def _show_environment(record: RunRecord) -> Html:
    machine = record.machine
    rows: list[tuple[object, object]] = [*record.versions.items()]
    rows += [(name, machine[name]) for name in ("system", "processors") if name in machine]
    rows += [(memory["name"], Size(memory["total"])) for memory in machine.get("memories", ())]
    rows += [*record.environment.items()]
    facts = [
        (name.replace("_", " "), value) for name, value in record.facts.items() if value not in (None, "")
    ]
    about = [("command", record.command), ("script", record.script or "not known"), *facts]
    return section(
        "Environment", element("h3", "The call"), table(about), element("h3", "The machine"), table(rows)
    )
