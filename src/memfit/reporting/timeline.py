"""`memfit.plot`: the timeline of one step as a stacked area, in one HTML file that opens offline."""

from pathlib import Path
from typing import Any

from memfit.errors import InvalidInput
from memfit.estimation.estimate import Estimate
from memfit.estimation.replay.naming import KINDS
from memfit.estimation.source import Course
from memfit.sizes import Size

# Okabe and Ito's colours, which people with any colour vision tell apart; rounding is grey because it serves no
# tensor.
_COLOURS = {
    "weights": "#0072B2",
    "optimizer state": "#56B4E9",
    "inputs": "#009E73",
    "activations": "#E69F00",
    "gradients": "#D55E00",
    "workspace": "#CC79A7",
    "rounding": "#999999",
}
# More points than a wide screen has pixels only make the file larger.
_POINTS = 1200
_LAYERS_ON_HOVER = 8
_MIB = 2**20


def plot(estimate: Estimate, path: str | Path, *, memory: int | str | None = None) -> Path:
    """Writes the timeline of the step that has the peak as one HTML file that opens offline.

    Args:
        estimate: An estimate that was recorded; the GPU compiler's figures have no timeline.
        path: The file to write; one that exists is replaced.
        memory: A budget to show as a line, such as "8GiB".

    Returns:
        The path.

    Raises:
        InvalidInput: If the estimate has no timeline.
    """
    if not isinstance(estimate, Estimate):
        raise InvalidInput("Only an estimate has a timeline to plot", received=type(estimate).__name__)
    figure = _draw(estimate, None if memory is None else Size(memory))
    file = Path(path)
    file.write_text(figure.to_html(include_plotlyjs=True, full_html=True, config={"displaylogo": False}))
    return file


def _draw(estimate: Estimate, memory: Size | None) -> Any:
    import plotly.graph_objects as go

    course = estimate.prediction.course()
    moments, top = course.sums, course.top
    shown = sorted({*range(0, len(moments), max(1, len(moments) // _POINTS)), top})
    figure = go.Figure()
    for kind in sorted(KINDS, key=list(_COLOURS).index):
        figure.add_scatter(
            x=shown,
            y=[moments[position][kind] / _MIB for position in shown],
            name=kind,
            stackgroup="all",
            mode="lines",
            line={"width": 0.5, "color": _COLOURS[kind]},
            fillcolor=_COLOURS[kind],
            hovertemplate="%{y:.1f} MiB",
        )
    # The peak's own text is on the marker; everywhere else the column of figures is enough.
    figure.add_scatter(
        x=[top],
        y=[course.peak / _MIB],
        name="peak",
        mode="markers",
        marker={"size": 11, "color": "black", "symbol": "diamond"},
        hovertemplate=f"<b>peak of this step {course.peak}</b><br>{_list_layers(course)}<extra></extra>",
    )
    if memory is not None:
        _draw_budget(figure, memory, len(moments))
    _lay_out(figure, estimate, course, memory)
    return figure


def _list_layers(course: Course) -> str:
    """The layers that hold most at the peak, as lines for a hover."""
    return "<br>".join(
        f"{layer}: {Size(size)}" for layer, size in course.layers.most_common(_LAYERS_ON_HOVER)
    )


def _draw_budget(figure: Any, memory: Size, length: int) -> None:
    figure.add_scatter(
        x=[0, length - 1],
        y=[memory / _MIB] * 2,
        name=f"budget {memory}",
        mode="lines",
        line={"color": "black", "dash": "dash", "width": 2},
        hoverinfo="skip",
    )


def _lay_out(figure: Any, estimate: Estimate, course: Course, memory: Size | None) -> None:
    layers = " ".join(_list_layers(course).split("<br>")[:1])
    figure.update_layout(
        title={
            "text": f"Predicted memory of one {estimate.phase} step at batch {estimate.batch_size}: "
            f"peak {estimate.peak}<br><sup>most at the peak: {layers or 'no layer'}; hover the diamond for more. "
            f"{estimate.source}</sup>",
            "x": 0.02,
        },
        xaxis={"title": "allocations and deallocations in order", "showgrid": False},
        yaxis={
            "title": "MiB in use",
            "rangemode": "tozero",
            "range": [0, 1.12 * max(estimate.peak, course.peak, memory or 0) / _MIB],
        },
        hovermode="x unified",
        template="plotly_white",
        legend={"traceorder": "reversed"},
        margin={"t": 90, "l": 70, "r": 20, "b": 60},
        font={"size": 14},
    )
