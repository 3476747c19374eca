"""Plots as HTML and SVG: shapes are stretched to the width there is, texts are not."""

from collections.abc import Iterable, Sequence

from memfit.reporting.html import Html, data_script, element, join
from memfit.sizes import Size

# Okabe and Ito's colours, which people with any colour vision tell apart; rounding is grey because it serves no
# tensor.
KIND_COLOURS = {
    "weights": "#0072B2",
    "optimizer state": "#56B4E9",
    "inputs": "#009E73",
    "activations": "#E69F00",
    "gradients": "#D55E00",
    "workspace": "#CC79A7",
    "rounding": "#999999",
}
_OTHER = "#999999"
_SIDE = 1000  # of the square that shapes are drawn in
_SECONDS = (
    1,
    2,
    5,
    10,
    20,
    30,
    60,
    120,
    300,
    600,
    1200,
    1800,
    3600,
    7200,
    21600,
    43200,
    86400,
    172800,
    604800,
)


def colour_of(kind: str) -> str:
    """Returns the colour of a kind of memory."""
    return KIND_COLOURS.get(kind, _OTHER)


def size_ticks(top: int, most: int = 5) -> list[Size]:
    """Returns round sizes from 0 to `top`, at most so many steps.

    Example:
        >>> size_ticks(430 * 2**20)
        [Size('0 B'), Size('100 MiB'), Size('200 MiB'), Size('300 MiB'), Size('400 MiB')]
    """
    units = (2 ** (10 * power) for power in range(5))
    steps = (factor * unit for unit in units for factor in (1, 2, 5, 10, 20, 50, 100, 200, 500))
    step = next((step for step in steps if top <= most * step), max(1, top // most))
    return [Size(size) for size in range(0, top + 1, step)]


def time_ticks(seconds: float, most: int = 6) -> list[tuple[float, str]]:
    """Returns round times from 0 to `seconds` as `clock` writes them, at most so many steps."""
    step = next((step for step in _SECONDS if seconds <= most * step), seconds / most)
    count = int(seconds / step) + 1 if step else 1
    return [(number * step, clock(number * step)) for number in range(count)]


def clock(seconds: float) -> str:
    """Returns a moment of a run as a clock that started with it would show it: "0:42", "1:05:30"."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def percent(part: float) -> str:
    """Returns a part of 1 for a style, such as "12.5%"."""
    return f"{100 * part:.3f}".rstrip("0").rstrip(".") + "%"


def plot(
    height: int,
    top: float,
    y: Sequence[Size],
    x: Iterable[tuple[float, str]],
    shapes: Iterable[Html],
    *,
    hover: tuple[str, Sequence[float], Sequence[str]] | None = None,
) -> Html:
    """Returns a plot of sizes.

    Args:
        height: In pixels.
        top: The size at its upper edge.
        y: The sizes to write at the left.
        x: Places from 0 to 1, and what to write below them.
        shapes: What `area` and `level` return.
        hover: A name for its data, places from 0 to 1 in order, and what to say at each.
    """
    lines = (
        element("line", x1=0, x2=_SIDE, **_across(size / top), stroke="currentColor", opacity=0.13)
        for size in y
    )
    drawing = element(
        "svg", *lines, *shapes, viewBox=f"0 0 {_SIDE} {_SIDE}", preserveAspectRatio="none", aria_hidden="true"
    )
    sizes = (element("span", size, style=f"bottom:{percent(size / top)}") for size in y)
    texts = (
        element("span", text, class_=_anchor(place), style=f"left:{percent(place)}") for place, text in x
    )
    data = (
        None
        if hover is None
        else data_script(hover[0], {"x": [round(p, 5) for p in hover[1]], "tips": hover[2]})
    )
    return join(
        [
            element(
                "div",
                element("div", *sizes, class_="mf-y"),
                element(
                    "div",
                    drawing,
                    class_="mf-area",
                    style=f"height:{height}px",
                    data_hover=None if hover is None else hover[0],
                ),
                element("div", *texts, class_="mf-x"),
                class_="mf-plot",
            ),
            data,
        ]
    )


def area(
    places: Sequence[float], upper: Sequence[float], lower: Sequence[float] | None, colour: str, *, line: bool
) -> Html:
    """Returns an area between two lines, as shapes of a plot.

    Args:
        places: From 0 to 1.
        upper: Heights from 0 to 1.
        lower: Heights from 0 to 1; None for the bottom.
        colour: Of the area.
        line: Whether the upper line is drawn over a faint area, instead of a full one.
    """
    above = [_point(place, height) for place, height in zip(places, upper, strict=True)]
    below = [
        _point(place, height) for place, height in zip(places, lower or [0.0] * len(places), strict=True)
    ]
    filled = "M" + "L".join([*above, *reversed(below)]) + "Z"
    drawn = element("path", d=filled, fill=colour, fill_opacity=0.22 if line else 1)
    if not line:
        return drawn
    stroke = element("path", d="M" + "L".join(above), fill="none", stroke=colour, stroke_width=1.8)
    return join([drawn, stroke])


def level(height: float, colour: str, *, dashed: bool = False) -> Html:
    """Returns a line across a plot at a height from 0 to 1."""
    dashes = "6 5" if dashed else None
    return element(
        "line", x1=0, x2=_SIDE, **_across(height), stroke=colour, stroke_width=2, stroke_dasharray=dashes
    )


def upright(place: float, colour: str) -> Html:
    """Returns a line from the bottom to the top of a plot at a place from 0 to 1."""
    x = round(place * _SIDE, 2)
    return element(
        "line", x1=x, x2=x, y1=0, y2=_SIDE, stroke=colour, stroke_width=1.5, stroke_dasharray="3 3"
    )


def legend(*entries: tuple[str, str, str]) -> Html:
    """Returns a legend of (text, colour, "area", "line" or "dashed")."""

    def key(colour: str, kind: str) -> Html:
        if kind == "area":
            return element("i", class_="mf-key", style=f"background:{colour}")
        dashed = " mf-dashed" if kind == "dashed" else ""
        return element("i", class_=f"mf-key mf-key-line{dashed}", style=f"border-color:{colour}")

    spans = (element("span", key(colour, kind), text) for text, colour, kind in entries)
    return element("div", *spans, class_="mf-legend")


def _point(place: float, height: float) -> str:
    return f"{place * _SIDE:.1f} {(1 - height) * _SIDE:.1f}"


def _anchor(place: float) -> str | None:
    """Where a text is held, so that none leaves the plot."""
    return "mf-at-start" if place < 0.04 else "mf-at-end" if place > 0.96 else None


def _across(height: float) -> dict[str, float]:
    y = round((1 - height) * _SIDE, 1)
    return {"y1": y, "y2": y}
