"""The house keeps what CONTRIBUTING says of it: every room has a README, and people meet only the public face."""

import re
from pathlib import Path

import pytest

import memfit

_ROOT = Path(__file__).parents[1]
_SOURCE = _ROOT / "src" / "memfit"
_ROOMS = sorted(file.parent for file in _SOURCE.rglob("__init__.py") if file.parent != _SOURCE)
# Pages about how memfit is built may name its inside.
_INSIDE = ("internals", "notes")
_PAGES = [
    _ROOT / "README.md",
    *(page for page in (_ROOT / "docs").rglob("*.md") if page.parent.name not in _INSIDE),
    *(_ROOT / "examples").rglob("*.py"),
]
_ROOM_NAMES = "|".join(
    room.name
    for room in _SOURCE.iterdir()
    if room.is_dir() and room.name not in ("__pycache__", *memfit.__all__)  # `memfit.optimizers` is public
)


def _name(path: Path) -> str:
    return str(path.relative_to(_ROOT))


@pytest.mark.parametrize("room", _ROOMS, ids=_name)
def test_every_room_has_a_readme_that_names_each_of_its_files_and_no_others(room: Path) -> None:
    readme = (room / "README.md").read_text()
    files = {file.name for file in room.glob("*.py")} - {"__init__.py"}
    packages = {f"{file.parent.name}/" for file in room.glob("*/__init__.py")}
    assert {name for name in files | packages if f"`{name}`" not in readme} == set()
    first_cells = " ".join(line.split("|")[1] for line in readme.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`([a-z0-9_]+\.py)`", first_cells)) <= files


@pytest.mark.parametrize("page", _PAGES, ids=_name)
def test_pages_and_examples_use_only_the_public_face(page: Path) -> None:
    text = page.read_text()
    assert re.findall(rf"(?:from|import) memfit\.\S+|memfit\.(?:{_ROOM_NAMES})\.\w+", text) == []
    used = set(re.findall(r"(?<![.\w])memfit\.([A-Za-z_]+)\b(?=\()", text))
    assert used <= set(memfit.__all__)


def test_errors_name_no_internals() -> None:
    literal = re.compile(rf"remedy=.*memfit\.(?:{_ROOM_NAMES})\.")
    assert [file.name for file in _SOURCE.rglob("*.py") if literal.search(file.read_text())] == []


def test_the_public_face_stays_small() -> None:
    assert len(memfit.__all__) <= 34


def test_the_tests_listed_as_slow_exist() -> None:
    for line in (_ROOT / "tests" / "slow.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            file, _, test = line.partition("::")
            assert f"def {test.partition('[')[0]}" in (_ROOT / "tests" / file).read_text(), line


def _anchors(page: Path) -> set[str]:
    """The anchors that headings of a page get, as forges and mkdocs make them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", [*_ROOT.glob("*.md"), *(_ROOT / "docs").rglob("*.md")], ids=_name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists() or "reference" in path, target  # the reference is written by `make docs`
        if anchor and linked.suffix == ".md" and linked.exists():
            assert anchor in _anchors(linked), target
