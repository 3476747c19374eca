"""`memfit report`: one run as a page that opens offline: the verdict first, then everything it rests on."""

import time
from dataclasses import replace
from typing import Any

from memfit.estimation.step_timeline import StepTimeline
from memfit.planning.plan import Plan
from memfit.reporting.html import Html, element, join, table
from memfit.reporting.pages import page, section
from memfit.reporting.plots import clock
from memfit.reporting.run_timeline import draw_run
from memfit.reporting.runs import describe_seconds, describe_uncounted
from memfit.reporting.step_picture import draw_layers, draw_lifetimes, draw_step
from memfit.reporting.verdict import as_typed, judge
from memfit.sizes import Size
from memfit.survival.settings import CUSTOM_LOOP
from memfit.training.records.record import REFUSED, RunRecord

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
        None
        if _is_refused(record)
        else section("Memory over the run", draw_run(record), _list_events(record)),
        _show_step(record),
        _show_levers(record),
        _show_findings(record),
        _show_environment(record),
    ]
    foot = element(
        "footer", f"memfit {record.versions.get('memfit', '')}. Nothing on this page was sent anywhere."
    )
    return page(f"memfit report {record.id}", *head, *parts, foot)


def _show_figures(record: RunRecord) -> Html:
    """The run in figures; each says whether it is predicted or measured."""
    plan, refused = record.plan, _is_refused(record)
    rows: list[tuple[str, object, str]] = []
    if record.device_peak is not None:
        rows.append(("peak on the device", record.device_peak, "measured, TensorFlow's allocator"))
    elif not refused:
        rows.append(("peak on the device", "not measured", describe_uncounted(record)))
    if plan is not None:
        planned = "peak of the closest plan" if refused else "peak as planned"
        rows.append((planned, plan.predicted, _source_of_prediction(plan)))
        rows.append(("peak of stock Keras", plan.stock, "at most" if plan.is_bound else "predicted"))
    if record.memory is not None:
        rows.append(("budget", record.memory, record.memory_source))
    if record.host_predicted is not None and not refused:
        rows.append(("process on the host", record.host_predicted, f"predicted{_tell_parts(record)}"))
    if record.host_peak is not None:
        rows.append(("process on the host", record.host_peak, "measured, resident"))
    if record.planning_seconds is not None:
        rows.append(("planning", describe_seconds(record.planning_seconds), "measured"))
    if not refused:
        rows += _list_times(record)
    return section("In figures", table(rows, head=["", "", "where from"], right=[1]))


def _is_refused(record: RunRecord) -> bool:
    return record.state == REFUSED and not record.steps


def _list_times(record: RunRecord) -> list[tuple[str, object, str]]:
    plan = record.plan
    known = f"{record.steps:,} steps, " if record.steps else ""
    told = f"measured; {known}restarts: {record.restarts or 'none'}"
    rows: list[tuple[str, object, str]] = [("time", describe_seconds(record.seconds), told)]
    if record.first_step_seconds is not None:
        first = describe_seconds(record.first_step_seconds)
        rows.append(("the first step", first, "measured, tracing included"))
    if record.step_seconds is not None:
        rows.append(("a step", describe_seconds(record.step_seconds), "measured, the mean of the later ones"))
        if plan is not None and not plan.changes_nothing:
            stock = describe_seconds(record.step_seconds / plan.time)
            rows.append(
                ("a step of stock Keras", stock, f"predicted: the plan takes {plan.time:.2f}x its time")
            )
    return rows


def _tell_parts(record: RunRecord) -> str:
    return ": " + ", ".join(f"{Size(size)} {name}" for name, size in record.host_parts.items())


def _source_of_prediction(plan: Plan) -> str:
    return f"at most: {plan.source}" if plan.is_bound else f"predicted: {plan.source}"


def _list_events(record: RunRecord) -> Html | None:
    marks = record.of_kind(*_TOLD)
    if not marks:
        return None
    rows = [
        [
            clock(mark.seconds),
            mark.kind,
            "" if mark.epoch is None else mark.epoch + 1,
            as_typed(record, mark.says),
        ]
        for mark in marks
    ]
    return join([element("h3", "Events"), table(rows, head=["at", "what", "epoch", ""], right=[2])])


def _show_step(record: RunRecord) -> Html:
    timeline = record.timeline
    title = "Where the peak comes from (predicted)"
    if timeline is None:
        why = "No step was recorded for this run."
        if record.plan is not None and record.plan.is_bound:
            why = "The job clearly fits, so no step was recorded; memfit estimate records one."
        elif record.call == CUSTOM_LOOP:
            why = "A custom loop is measured, not recorded."
        return section(title, element("p", why))
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
    more = "also counts prefetched batches, and gaps in the allocator where memory is tight"
    return element("p", f"The step alone peaks at {step}; the plan's {predicted} {more}.")


def _show_course(timeline: StepTimeline, memory: Size | None) -> list[Html]:
    if not timeline.positions:  # a GPU's compiler does not tell the order of allocations
        return []
    return [element("h3", "One step"), draw_step(timeline, memory, name="step")]


def _show_levers(record: RunRecord) -> Html:
    plan = record.plan
    if plan is not None and plan.levers:
        title = "Levers of the closest plan, and why it is not enough" if _is_refused(record) else None
        typed = replace(
            plan, levers=tuple(replace(row, why=as_typed(record, row.why)) for row in plan.levers)
        )
        return section(title or "Levers, used and not used", lever_table(typed))
    if record.call == CUSTOM_LOOP:
        why = "None: memfit cannot change a custom loop."
    elif _is_refused(record):
        why = "No lever was considered."
    elif plan is None:
        why = "No plan was made: the training ran as in stock Keras."
    elif record.of_kind("out of memory"):
        why = "None was planned. The events say what was changed when memory ran out."
    else:
        why = "None was needed: the training ran as in stock Keras."
    return section("Levers", element("p", why))


def lever_table(plan: Plan) -> Html:
    """Returns every lever of a plan with what it saves and costs, and why it is used or not."""
    rows = [
        [
            element("span", "✓" if lever.used else "·", class_="mf-good" if lever.used else "mf-faint"),
            lever.name,
            lever.fidelity,
            f"-{lever.saving}" if lever.saving else "",
            f"+{lever.cost:.0%}" if lever.cost and round(100 * lever.cost) else "",
            f"{lever.setting}: {lever.why}" if lever.setting else lever.why,
        ]
        for lever in sorted(plan.levers, key=lambda lever: (not lever.used, lever.fidelity))
    ]
    return table(rows, head=["", "lever", "fidelity", "saves", "time", "why"], right=[3, 4])


def _show_findings(record: RunRecord) -> Html:
    title, findings, data = "Input pipeline", record.findings, record.facts.get("data")
    if findings is None:
        why = "Not checked: no tf.data pipeline was given to fit()."
        if data and data != "NoneType":
            why = f"Not checked: the training data is a {data}, and only tf.data pipelines are checked."
        return section(title, element("p", why))
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
    facts = [(name.replace("_", " "), _tell_fact(value)) for name, value in record.facts.items() if value]
    about = [("command", record.command), ("script", record.script or "not known"), *facts]
    return section(
        "Environment", element("h3", "The call"), table(about), element("h3", "The machine"), table(rows)
    )


def _tell_fact(value: object) -> object:
    if isinstance(value, bool):
        return "yes"
    return f"{value:,}" if isinstance(value, int) else value
