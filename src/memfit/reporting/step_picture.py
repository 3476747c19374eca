"""The predicted memory of one step: over the step, by layer at its peak, and how long the largest tensors live."""

from collections import defaultdict

from memfit.estimation.source import Tensor
from memfit.estimation.step_timeline import StepTimeline
from memfit.reporting.html import Html, element, join
from memfit.reporting.plots import (
    KIND_COLOURS,
    area,
    colour_of,
    legend,
    level,
    percent,
    plot,
    size_ticks,
    upright,
)
from memfit.sizes import Size

# What a layer of "" holds: loss, optimizer, inputs.
NO_LAYER = "(outside of layers)"
_LAYERS = 25
_WORTH_A_ROW = 0.002  # of the peak


def draw_step(timeline: StepTimeline, memory: Size | None = None, *, name: str = "") -> Html:
    """Returns the bytes in use by kind over a step, with its peak, and the budget where it is near.

    Args:
        timeline: The step.
        memory: The budget.
        name: Of the data for the page's script; without one it cannot be hovered.
    """
    kinds = sorted(timeline.kinds, key=list(KIND_COLOURS).index)
    columns = {kind: timeline.kinds.index(kind) for kind in kinds}
    totals = [sum(row) for row in timeline.sums]
    highest = max([*totals, int(timeline.peak)])
    shows_budget = memory is not None and memory < 2.5 * highest
    top = 1.08 * max(highest, memory if shows_budget and memory else 0)
    shapes: list[Html] = []
    lower = [0.0] * len(totals)
    for kind in kinds:
        upper = [low + row[columns[kind]] / top for low, row in zip(lower, timeline.sums, strict=True)]
        shapes.append(area(timeline.positions, upper, lower, colour_of(kind), line=False))
        lower = upper
    if timeline.positions:
        shapes.append(upright(timeline.positions[timeline.top], "currentColor"))
    if shows_budget and memory is not None:
        shapes.append(level(memory / top, "var(--mf-budget)"))
    tips = [_tell_moment(timeline, row) for row in range(len(totals))]
    entries = [
        (kind, colour_of(kind), "area") for kind in kinds if any(r[columns[kind]] for r in timeline.sums)
    ]
    entries.append((f"peak {timeline.peak}", "currentColor", "dashed"))
    if memory is not None:
        far = "" if shows_budget else " (above the plot)"
        entries.append((f"budget {memory}{far}", "var(--mf-budget)", "line"))
    return join(
        [
            legend(*entries),
            plot(
                230,
                top,
                size_ticks(int(top)),
                [(0.0, "start of the step"), (1.0, "its end, in order of allocations")],
                shapes,
                hover=(name, timeline.positions, tips) if name else None,
            ),
        ]
    )


def _tell_moment(timeline: StepTimeline, row: int) -> str:
    sums = timeline.sums[row]
    held = sorted(zip(sums, timeline.kinds, strict=True), reverse=True)
    where = "at the peak" if row == timeline.top else f"at {timeline.positions[row]:.0%} of the step"
    return "\n".join(
        [f"{Size(sum(sums))} {where}", *(f"{kind}: {Size(size)}" for size, kind in held if size > 0)]
    )


def draw_layers(timeline: StepTimeline, most: int = _LAYERS) -> Html:
    """Returns a bar for each layer, of what it holds at the peak by kind, the largest first."""
    layers: dict[str, dict[str, int]] = defaultdict(dict)
    for share in timeline.shares:
        held = layers[share.layer]
        held[share.kind] = held.get(share.kind, 0) + int(share.bytes)
    ordered = sorted(layers.items(), key=lambda item: (item[0] == "...", -sum(item[1].values())))
    worth = sum(sum(held.values()) > _WORTH_A_ROW * timeline.peak for _, held in ordered)
    shown, rest = ordered[: min(most, worth)], ordered[min(most, worth) :]
    largest = max((sum(held.values()) for _, held in ordered), default=1)
    rows = [_draw_layer(layer or NO_LAYER, held, largest, timeline.peak) for layer, held in shown]
    more = Size(sum(sum(held.values()) for _, held in rest))
    return join(
        [
            element("div", *(cell for row in rows for cell in row), class_="mf-bars"),
            element("p", f"The rest ({len(rest)} more) holds {more}.", class_="mf-faint") if rest else None,
        ]
    )


def _draw_layer(layer: str, held: dict[str, int], largest: int, peak: Size) -> list[Html]:
    total = sum(held.values())
    parts, left = [], 0.0
    for kind in sorted(held, key=list(KIND_COLOURS).index):
        width = held[kind] / largest
        tip = f"{layer}\n{kind}: {Size(held[kind])}\nin all {Size(total)}, {total / peak:.0%} of the peak"
        style = f"left:{percent(left)};width:{percent(width)};background:{colour_of(kind)}"
        parts.append(element("span", class_="mf-tip", title=tip, style=style))
        left += width
    return [
        element("div", layer, class_="mf-name mf-tip", title=layer),
        element("div", *parts, class_="mf-track"),
        element("div", Size(total), class_="mf-size"),
    ]


def draw_lifetimes(timeline: StepTimeline) -> Html:
    """Returns a bar for each of the largest tensors at the peak: from where to where in the step it lives."""
    peak = timeline.positions[timeline.top] if timeline.positions else 0.0
    worth = [tensor for tensor in timeline.largest if tensor.bytes > _WORTH_A_ROW * timeline.peak]
    cells = [cell for tensor in worth for cell in _draw_lifetime(tensor, peak)]
    return element("div", *cells, class_="mf-bars")


def _draw_lifetime(tensor: Tensor, peak: float) -> list[Html]:
    named = tensor.layer or tensor.op or NO_LAYER
    begins = "there before the step" if tensor.born <= 0 else f"allocated at {tensor.born:.0%} of the step"
    ends = "kept after it" if tensor.freed >= 1 else f"freed at {tensor.freed:.0%}"
    about = " ".join(filter(None, (tensor.op, tensor.shape)))
    tip = "\n".join(filter(None, (named, f"{tensor.kind}: {tensor.bytes}", about, f"{begins}, {ends}")))
    width = max(0.004, tensor.freed - tensor.born)
    style = f"left:{percent(tensor.born)};width:{percent(width)};background:{colour_of(tensor.kind)}"
    track = element(
        "div",
        element("span", class_="mf-tip", title=tip, style=style),
        element("span", class_="mf-peak-line", style=f"left:{percent(peak)}"),
        class_="mf-track",
    )
    return [
        element("div", named, class_="mf-name mf-tip", title=tip),
        track,
        element("div", tensor.bytes, class_="mf-size"),
    ]
