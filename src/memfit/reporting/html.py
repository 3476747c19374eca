"""HTML that cannot be injected into: every text is escaped when an element is made of it."""

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


class Html(str):
    """HTML that has been made here; whatever else is put into an element is text, and escaped."""

    __slots__ = ()


# Elements that have no end tag.
_VOID = frozenset({"br", "meta", "rect", "line", "circle", "path"})


def element(tag: str, *children: object, **attributes: object) -> Html:
    """Returns an element.

    Args:
        tag: Such as "td".
        *children: Text, which is escaped, or `Html`; None is left out.
        **attributes: Such as `class_="bar"` or `data_tip="conv1"`; None is left out.

    Example:
        >>> element("td", "<script>", class_="name")
        '<td class="name">&lt;script&gt;</td>'
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in _VOID:
        return Html(f"<{tag}{written}/>")
    return Html(f"<{tag}{written}>{join(children)}</{tag}>")


def join(parts: Iterable[object]) -> Html:
    """Returns parts one behind the other: `Html` as it is, everything else escaped, None left out."""
    return Html(
        "".join(part if isinstance(part, Html) else escape(str(part)) for part in parts if part is not None)
    )


def table(
    rows: Sequence[Sequence[object]], *, head: Sequence[object] = (), right: Sequence[int] = ()
) -> Html:
    """Returns a table; the arguments are those of `memfit.tables.table`, cells may be `Html`."""

    def row(cells: Sequence[object], tag: str) -> Html:
        made = (
            element(tag, cell, class_="mf-number" if column in right else None)
            for column, cell in enumerate(cells)
        )
        return element("tr", *made)

    top = element("thead", row(head, "th")) if head else None
    body = element("tbody", *(row(cells, "td") for cells in rows))
    return element("div", element("table", top, body), class_="mf-scroll")


def data_script(name: str, data: Any) -> Html:
    """Returns data for a page's script, as JSON that no text in it can end."""
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return Html(f'<script type="application/json" id="{escape(name)}">{text}</script>')
