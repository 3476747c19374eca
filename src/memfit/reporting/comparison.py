"""`memfit compare`: what changed between two runs, estimates or plans, as text and as a page."""

from collections.abc import Sequence

from memfit.reporting import html
from memfit.reporting.html import Html, element, join
from memfit.reporting.pages import page, section
from memfit.reporting.plots import legend, percent
from memfit.sizes import Size
from memfit.tables import table
from memfit.training.records.comparing import Comparison, Difference

_LAYERS = 15  # what a person reads; the page has more
_LAYERS_ON_PAGE = 40
_BEFORE, _AFTER = "rgba(128,128,128,.65)", "var(--mf-measured)"


def describe_comparison(compared: Comparison) -> str:
    """Returns what changed as text: the peak first."""
    blocks = [tell_peak(compared)]
    head = ["", compared.before.name, compared.after.name]
    if compared.changes:
        blocks.append(table(compared.changes, head=head))
    if kinds := _rows(compared.kinds):
        blocks.append(table(kinds, head=["kind (predicted)", "before", "after", "change"], right=[1, 2, 3]))
    changed = [each for each in compared.layers if each.growth]
    if layers := _rows(changed[:_LAYERS]):
        blocks.append(table(layers, head=["layer (predicted)", "before", "after", "change"], right=[1, 2, 3]))
    if len(changed) > _LAYERS:
        rest = sum(each.growth for each in changed[_LAYERS:])
        blocks[-1] += f"\n{len(changed) - _LAYERS} more layers: {_tell_growth(rest)}"
    return "\n\n".join(blocks)


def tell_peak(compared: Comparison) -> str:
    """Returns what became of the peak, as a sentence."""
    peak = compared.peak
    if peak is None:
        return "The peaks cannot be compared: both have to be measured, or both predicted."
    part = f" ({peak.growth / peak.before:+.1%})" if peak.before else ""
    if not peak.growth:
        return f"The {peak.name} peak is the same: {peak.after}."
    word = "grows" if peak.growth > 0 else "shrinks"
    return f"The {peak.name} peak {word} from {peak.before} to {peak.after}{part}."


def comparison_page(compared: Comparison) -> Html:
    """Returns the page of a comparison."""
    before, after = compared.before.name, compared.after.name
    peak = compared.peak
    level = "warn" if peak is None or peak.growth > 0 else "good"
    parts = [
        element("div", "memfit compare", class_="mf-faint"),
        element("h1", f"{before} → {after}"),
        element(
            "div",
            element("div", tell_peak(compared), class_="mf-headline"),
            class_=f"mf-verdict mf-{level}",
        ),
    ]
    if compared.changes:
        parts.append(section("What differs", html.table(compared.changes, head=["", before, after])))
    keys = legend((before, _BEFORE, "area"), (after, _AFTER, "area"))
    if compared.kinds:
        parts.append(section("By kind, at the predicted peak", keys, _draw(compared.kinds)))
    changed = [each for each in compared.layers if each.growth]
    if changed:
        shown = changed[:_LAYERS_ON_PAGE]
        more = f"{len(changed) - len(shown)} more layers changed." if len(changed) > len(shown) else None
        parts.append(section("By layer, the largest change first", keys, _draw(shown), more))
    elif not compared.kinds:
        parts.append(element("p", "No comparison by kind and layer: a step was not recorded on both sides."))
    return page(f"memfit compare: {before}, {after}", *parts)


def _draw(differences: Sequence[Difference]) -> Html:
    """Draws two bars for each difference, before and after, and the change in figures."""
    largest = max((max(each.before, each.after) for each in differences), default=1) or 1
    cells = []
    for each in differences:
        tip = f"{each.name}\nbefore {each.before}, after {each.after}\n{_tell_growth(each.growth)}"
        bars = (
            element(
                "span", style=f"left:0;bottom:50%;width:{percent(each.before / largest)};background:{_BEFORE}"
            ),
            element(
                "span", style=f"left:0;top:50%;width:{percent(each.after / largest)};background:{_AFTER}"
            ),
        )
        cells += [
            element("div", each.name, class_="mf-name mf-tip", title=each.name),
            element("div", *bars, class_="mf-track mf-tip", title=tip),
            element("div", _tell_growth(each.growth), class_="mf-size"),
        ]
    return join([element("div", *cells, class_="mf-bars")])


def _rows(differences: Sequence[Difference]) -> list[list[object]]:
    return [[each.name, each.before, each.after, _tell_growth(each.growth)] for each in differences]


def _tell_growth(growth: int) -> str:
    return "=" if not growth else f"{'+' if growth > 0 else '-'}{Size(abs(growth))}"
