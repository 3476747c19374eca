"""What the linter has to say: each finding with its place, what is at stake, and the fix."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from memfit.showing import Shown
from memfit.tables import table


@dataclass(frozen=True)
class Finding:
    """One thing in a pipeline worth changing.

    Attributes:
        rule: The rule's name.
        where: The stage, counted from the source.
        what: What is wrong, as a sentence.
        stake: The bytes or the time at stake, in words.
        fix: What to write instead.
        dataset: Which of several datasets it is about, counted from 1.
    """

    rule: str
    where: str
    what: str
    stake: str
    fix: str
    dataset: int = 1


@dataclass(frozen=True, repr=False)
class Findings(Shown):
    """What is worth changing in one or more datasets; empty is good.

    Attributes:
        findings: The findings.
        datasets: The number of datasets that were read.
        names: What they are called, such as "validation data"; empty for their numbers.
    """

    findings: tuple[Finding, ...]
    datasets: int = 1
    names: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __getitem__(self, index: int) -> Finding:
        return self.findings[index]

    def __repr__(self) -> str:
        if not self.findings:
            return f"Nothing to change in the {'pipeline' if self.datasets == 1 else 'pipelines'}."
        lines = []
        for finding in self.findings:
            place = f"stage {finding.where}" if finding.where else "the whole pipeline"
            prefix = f"{self._name(finding)}, " if self.datasets > 1 or self.names else ""
            rows = [["at", prefix + place], ["stake", finding.stake], ["fix", finding.fix]]
            block = "\n".join("  " + line for line in table(rows).splitlines())
            lines.append(f"{finding.rule}: {finding.what}\n{block}")
        return "\n".join(lines)

    def to_json(self) -> list[dict[str, Any]]:
        """Returns the findings as plain data, each with the name of its dataset."""
        return [{**asdict(finding), "name": self._name(finding)} for finding in self.findings]

    def _name(self, finding: Finding) -> str:
        return self.names[finding.dataset - 1] if self.names else f"dataset {finding.dataset}"
