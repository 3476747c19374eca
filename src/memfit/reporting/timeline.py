"""`memfit.plot`: the predicted memory of one step as an HTML page that opens offline."""

from pathlib import Path

from memfit.errors import InvalidInput
from memfit.estimation.estimate import Estimate
from memfit.estimation.step_timeline import timeline_of
from memfit.reporting.html import element
from memfit.reporting.pages import page, section
from memfit.reporting.step_picture import draw_layers, draw_lifetimes, draw_step
from memfit.sizes import Size


def plot(estimate: Estimate, path: str | Path, *, memory: int | str | None = None) -> Path:
    """Writes the timeline of the step that has the peak as one HTML file that opens offline.

    It shows the bytes in use by kind over the step, the peak by layer, and how long the largest tensors live.

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
    budget = None if memory is None else Size(memory)
    timeline = timeline_of(estimate)
    if not timeline.positions:
        estimate.prediction.course()  # says why there is none
    title = (
        f"Predicted memory of one {estimate.phase} step at batch {estimate.batch_size}: peak {estimate.peak}"
    )
    file = Path(path)
    file.write_text(
        page(
            title,
            element("h1", title),
            element("p", f"source: {estimate.source}", class_="mf-faint"),
            draw_step(timeline, budget, name="step"),
            section("By layer and kind, at the peak", draw_layers(timeline)),
            section(
                "The largest tensors at the peak, and when in the step they live", draw_lifetimes(timeline)
            ),
        ),
        encoding="utf-8",
    )
    return file
