"""Measured memory of a run over its time, against what was predicted, with what happened when."""

from collections.abc import Sequence

from memfit.reporting.html import Html, element, join
from memfit.reporting.plots import (
    area,
    clock,
    legend,
    level,
    percent,
    plot,
    size_ticks,
    time_ticks,
    upright,
)
from memfit.reporting.runs import describe_seconds, describe_uncounted
from memfit.sizes import Size
from memfit.training.records.record import Mark, RunRecord

# What stands out in the plot of the device, by the kind of mark, and how it is called in its lane.
_ALARMS = {
    "out of memory": "var(--mf-budget)",
    "death": "var(--mf-budget)",
    "restart": "var(--mf-predicted)",
    "leak": "var(--mf-predicted)",
}
# At this part of the width an epoch's number finds room in its band at any width of the page.
_LABELLED = 0.045


def draw_run(record: RunRecord, name: str = "run") -> Html:
    """Returns the lanes of what happened, and below them device and host memory over the same time.

    Args:
        record: The run.
        name: Of the data for the page's script; empty for a notebook.
    """
    if not len(record.series):
        return element("p", "No memory was measured over time.", class_="mf-faint")
    length = max([record.seconds, record.series.seconds[-1], *(mark.seconds for mark in record.marks), 1e-3])
    parts = [_draw_lanes(record, length)]
    if any(size is not None for size in record.series.device):
        parts += [element("h3", f"Device ({record.device})"), _draw_device(record, length, name)]
    else:
        why = f"{describe_uncounted(record)}: see the host."
        parts.append(element("p", why, class_="mf-faint"))
    parts += [element("h3", "Host, this process"), _draw_host(record, length, name)]
    return join(parts)


def _draw_device(record: RunRecord, length: float, name: str) -> Html:
    sizes = [size or 0 for size in record.series.device]
    predicted = "at most" if record.plan is not None and record.plan.is_bound else "predicted peak"
    lines = [(predicted, record.predicted, "var(--mf-predicted)", True)]
    lines.append(("budget", record.memory, "var(--mf-budget)", False))
    alarms = [(mark.seconds / length, _ALARMS[mark.kind]) for mark in record.marks if mark.kind in _ALARMS]
    return _draw(record, length, sizes, "var(--mf-measured)", lines, alarms, f"{name}-device" if name else "")


def _draw_host(record: RunRecord, length: float, name: str) -> Html:
    predicted = "at most" if record.plan is not None and record.plan.is_bound else "predicted peak"
    lines = [(predicted, record.host_predicted, "var(--mf-predicted)", True)]
    lines.append(("all of the host's memory", record.host_memory, "var(--mf-budget)", False))
    sizes = list(record.series.host)
    return _draw(record, length, sizes, "var(--mf-host)", lines, [], f"{name}-host" if name else "")


def _draw(
    record: RunRecord,
    length: float,
    sizes: Sequence[int],
    colour: str,
    lines: Sequence[tuple[str, Size | None, str, bool]],
    alarms: Sequence[tuple[float, str]],
    name: str,
) -> Html:
    """Draws one measured series; lines that lie far above it are written in the legend only."""
    highest = max(*sizes, 1)
    near = [line for line in lines if line[1] is not None and line[1] < 2.5 * highest]
    top = 1.08 * max([highest, *(int(size) for _, size, _, _ in near if size is not None)])
    places = [min(1.0, seconds / length) for seconds in record.series.seconds]
    drawn = _with_gaps(record, sizes)
    shapes = [
        area([s / length for s, _ in drawn], [size / top for _, size in drawn], None, colour, line=True)
    ]
    shapes += [level(size / top, tone, dashed=dashed) for _, size, tone, dashed in near if size is not None]
    shapes += [upright(place, tone) for place, tone in alarms]
    entries = [(f"measured, highest {Size(highest)}", colour, "line")]
    entries += [
        (
            f"{text} {size}" + ("" if line in near else " (above the plot)"),
            tone,
            "dashed" if dashed else "line",
        )
        for line in lines
        for text, size, tone, dashed in [line]
        if size is not None
    ]
    tips = [_tell_sample(record, row, Size(size)) for row, size in enumerate(sizes)]
    ticks = [(seconds / length, text) for seconds, text in time_ticks(length)]
    made = plot(
        170, top, size_ticks(int(top), 4), ticks, shapes, hover=(name, places, tips) if name else None
    )
    return join([legend(*entries), made])


def _with_gaps(record: RunRecord, sizes: Sequence[int]) -> list[tuple[float, int]]:
    """Returns moments and sizes to draw: nothing between the death of a process and what the next one measured."""
    deaths = [mark.seconds for mark in record.of_kind("death")]
    points: list[tuple[float, int]] = []
    before = 0.0
    for seconds, size in zip(record.series.seconds, sizes, strict=True):
        for death in deaths:
            if points and before <= death < seconds:
                points += [(death, points[-1][1]), (death, 0), (seconds, 0)]
        points.append((seconds, size))
        before = seconds
    return points


def _tell_sample(record: RunRecord, row: int, size: Size) -> str:
    seconds = record.series.seconds[row]
    epochs = [mark for mark in record.of_kind("epoch") if mark.seconds <= seconds]
    inside = "" if not epochs else f"epoch {(epochs[-1].epoch or 0) + 1}, "
    return f"{size}\n{inside}batch {record.series.batches[row]} of the run\nat {clock(seconds)}"


def _draw_lanes(record: RunRecord, length: float) -> Html:
    cells: list[Html] = []
    for title, kind in (("epochs", "epoch"), ("validation", "validation"), ("checkpoints", "checkpoint")):
        marks = record.of_kind(kind)
        if marks:
            draw = _draw_moment if kind == "checkpoint" else _draw_band
            cells += _lane(title, [draw(mark, length) for mark in marks])
    alarms = record.of_kind(*_ALARMS)
    if alarms:
        cells += _lane("events", [_draw_moment(mark, length) for mark in alarms])
    return element("div", *cells, class_="mf-plot") if cells else Html("")


def _lane(title: str, marks: Sequence[Html]) -> list[Html]:
    return [element("div", title, class_="mf-lane-name"), element("div", *marks, class_="mf-lane")]


def _draw_band(mark: Mark, length: float) -> Html:
    width = (mark.lasted or 0.0) / length
    number = "" if mark.epoch is None else str(mark.epoch + 1)
    tip = f"{mark.kind}{f' {number}' if mark.kind == 'epoch' else f' of epoch {number}' if number else ''}"
    tip += f"\nfrom {clock(mark.seconds)}, took {describe_seconds(mark.lasted or 0.0)}"
    return element(
        "span",
        number if mark.kind == "epoch" and width > _LABELLED else None,
        class_="mf-band mf-tip",
        title=tip,
        style=f"left:{percent(mark.seconds / length)};width:{percent(width)}",
    )


def _draw_moment(mark: Mark, length: float) -> Html:
    place = f"left:{percent(mark.seconds / length)}"
    where = [] if mark.epoch is None else [f"epoch {mark.epoch + 1}"]
    where += [] if mark.batch is None else [f"batch {mark.batch}"]
    tip = "\n".join(filter(None, (mark.kind, mark.says, ", ".join([*where, f"at {clock(mark.seconds)}"]))))
    if mark.kind == "checkpoint":
        return element("span", class_="mf-saved mf-tip", title=tip, style=place)
    tone = _ALARMS[mark.kind]
    return element("span", class_="mf-moment mf-tip", title=tip, style=f"{place};background:{tone}")
