"""Writes docs/benchmarks.md from benchmarks/results/*.json; with --check it only says whether it is current."""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from sections import SECTIONS, Section

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"

_HEAD = """# Benchmarks

Written by `make benchmarks-page` from the files in `benchmarks/results/`, each of which names its machine and
versions. Do not edit it by hand: `make check` fails if it is not current.

**Nothing here was measured on a GPU.** Memory is measured in an arena: TensorFlow's own allocator on a CPU, with a
limit. All times are ratios of one run on one machine of 2 cores. "Stock" is Keras without memfit, in the same run.
"""
# The commit of figures that do not tell it.
_OLDER = "older"
_OLD = (
    "\nMeasured before the code was reorganised in November 2026 (commit cfb66d5), and not repeated since.\n"
)


def _render(section: Section) -> str:
    results = [json.loads((RESULTS / f"{name}.json").read_text()) for name in section.results]
    rows = section.rows(*(result["figures"] for result in results))
    where = ", ".join(f"`{name}.json`" for name in section.results)
    parts = [f"\n## {section.title}\n\n`make {section.target}`; {where}; {_describe(results[0])}.\n"]
    if section.older:
        parts.append(_OLD)
    parts.append(f"\n| {' | '.join(section.columns)} |\n|{'---|' * len(section.columns)}\n")
    parts += [f"| {' | '.join(row)} |\n" for row in rows]
    if section.note:
        parts.append(f"\n{section.note}\n")
    return "".join(parts)


def _describe(result: dict[str, Any]) -> str:
    machine, figures = result["machine"], result["figures"]
    cores = machine.get("cores", machine.get("cpus"))
    rows = figures.get("rows", ()) if isinstance(figures, dict) else figures
    commits = [row["commit"] for row in rows if isinstance(row, dict) and "commit" in row]
    counts = Counter(commits or [machine.get("commit", _OLDER)])
    return (
        f"{cores} cores, TensorFlow {machine['tensorflow']}, Keras {machine['keras']}{_tell_commits(counts)}"
    )


def _tell_commits(counts: Counter[str]) -> str:
    """Says which code was measured; nothing where the results do not know."""
    if set(counts) == {_OLDER}:
        return ""
    if len(counts) == 1:
        return f", commit {next(iter(counts))}"
    return ", commits " + ", ".join(f"{name} ({count} rows)" for name, count in counts.most_common())


def main() -> int:
    """Writes or checks the page; returns the exit code."""
    text = _HEAD + "".join(_render(section) for section in SECTIONS)
    if "--check" not in sys.argv:
        PAGE.write_text(text)
        return 0
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    print(
        "docs/benchmarks.md is not what benchmarks/results/ says. Run `make benchmarks-page`.",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
