"""Pages of the documentation site that are made from the code: mkdocs calls these functions (mkdocs.yml, `hooks`).

The reference of Python is a list of the public names, filled in from their docstrings by mkdocstrings; that of the
command line is what `memfit COMMAND --help` prints; the gallery is `examples/README.md`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

import memfit
from memfit.cli.main import COMMANDS

ROOT = Path(__file__).parents[1]
GROUPS = {
    "Training": ["fit", "evaluate", "predict", "gradients"],
    "Before the run": ["estimate", "Estimate", "plan", "Plan", "slim", "explain", "plot"],
    "Memory": ["budget", "Budget", "configure", "isolated", "release", "Size"],
    "Data": ["images", "arrays", "lint"],
    "Many trainings": ["trials", "isolate"],
    "Watching and records": ["MemoryMonitor", "watch", "runs", "Run"],
    "Optimizers": ["optimizers.Adam8bit", "optimizers.Adafactor"],
    "Errors": ["MemfitError", "InvalidInput", "DoesNotFit", "OutOfMemory", "ProcessDied", "TooLate"],
}


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that are made, and the pictures of the gallery."""
    pages = {
        "reference/python.md": _list_names(),
        "reference/commands.md": _list_commands(),
        "examples.md": _read_gallery(),
    }
    made = [File.generated(config, path, content=text) for path, text in pages.items()]
    for picture in sorted((ROOT / "examples" / "images").glob("*.png")):
        made.append(File.generated(config, f"gallery/{picture.name}", abs_src_path=str(picture)))
    for file in made:
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Any, files: Any, **_: Any) -> str:
    """Points links to scripts and notebooks at the gallery, and makes links of pages that are named as files."""
    up = "../" * page.file.src_uri.count("/")

    def link(match: re.Match[str]) -> str:
        return f"[{match[0]}]({up}{match[1]})" if files.get_file_from_path(match[1]) else match[0]

    # What a block needs is for the tests (tests/test_docs.py); the site's fences know a language alone.
    markdown = re.sub(r"^```python needs[\w-]*$", "```python", markdown, flags=re.MULTILINE)
    markdown = re.sub(r"\]\((?:\.\./)+examples/[^)]*\)", f"]({up}examples.md)", markdown)
    return re.sub(r"`docs/([\w/-]+\.md)`", link, markdown)


def _list_names() -> str:
    known = {name.partition(".")[0] for names in GROUPS.values() for name in names}
    others = sorted(set(memfit.__all__) - known - {"__version__"})
    groups = {**GROUPS, "More": others} if others else GROUPS
    lines = ["# Python", "", "Everything that `import memfit` gives. Names are loaded on first use.", ""]
    for title, names in groups.items():
        lines += [f"## {title}", ""]
        for name in names:
            lines += [f"::: memfit.{name}", ""]
    return "\n".join(lines)


def _list_commands() -> str:
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONPATH": str(ROOT / "src")}
    lines = ["# Command line", "", "What `memfit COMMAND --help` prints.", ""]
    for command in COMMANDS:
        text = subprocess.run(
            [sys.executable, "-m", "memfit", command, "--help"],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        ).stdout
        lines += [f"## memfit {command}", "", "```text", text.rstrip(), "```", ""]
    return "\n".join(lines)


def _read_gallery() -> str:
    text = (ROOT / "examples" / "README.md").read_text().replace("](images/", "](gallery/")
    text = text.replace("](../docs/images/", "](images/").replace("](../docs/", "](")
    return re.sub(r"\[([^\]]*)\]\([\w-]+\.(?:py|ipynb)\)", r"\1", text)
