"""A page of HTML that opens offline: style and script are in it, and it asks for nothing else."""

from functools import cache
from importlib.resources import files

from memfit.reporting.html import Html, element, join

# Whatever a page holds, a browser may load nothing for it and send nothing from it.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def page(title: str, *content: object) -> Html:
    """Returns a whole page."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("title", title),
        _inline("style", "fragment.css", "page.css"),
    )
    body = element("body", element("main", *content, class_="mf mf-page"), _inline("script", "page.js"))
    return Html("<!doctype html>\n" + element("html", head, body, lang="en"))


def fragment(*content: object) -> Html:
    """Returns content for a notebook, whose colours it takes."""
    return element("div", _inline("style", "fragment.css"), *content, class_="mf")


def section(title: str, *content: object) -> Html:
    """Returns a part of a page below its heading."""
    return element("section", element("h2", title), *content)


def _inline(tag: str, *names: str) -> Html:
    return element(tag, join(Html(_read(name)) for name in names))


@cache
def _read(name: str) -> str:
    return (files("memfit.reporting") / "assets" / name).read_text(encoding="utf-8")
