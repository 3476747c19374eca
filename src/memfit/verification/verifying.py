"""`verify`: all checks, and the table and the data that come of them."""

import logging
import platform
import time
from dataclasses import asdict, dataclass
from typing import Any

from memfit.budgets.budget import budget
from memfit.compat.versions import read_versions
from memfit.tables import table
from memfit.verification.checks import Check, run_checks

_log = logging.getLogger("memfit")


@dataclass(frozen=True, repr=False)
class Verification:
    """What `verify` found on this machine.

    Attributes:
        checks: The checks in order.
        device: What they ran on.
        versions: Of memfit and of what it stands on.
        seconds: How long it took.
    """

    checks: tuple[Check, ...]
    device: str
    versions: dict[str, str]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    def __repr__(self) -> str:
        rows = [
            ["pass" if check.passed else "FAIL", check.name, check.of, check.expected, check.measured]
            for check in self.checks
        ]
        count = sum(check.passed for check in self.checks)
        head = ["", "promise", "training", "expected", "measured"]
        title = f"memfit {self.versions['memfit']} on {self.device}"
        verdict = f"{count} of {len(self.checks)} hold ({self.seconds:.0f} s)"
        return f"{title}\n\n{table(rows, head=head)}\n\n{verdict}"

    def to_json(self) -> dict[str, Any]:
        """Returns everything as plain data, for a bug report."""
        return {
            "passed": self.passed,
            "device": self.device,
            "versions": self.versions,
            "seconds": round(self.seconds, 1),
            "checks": [asdict(check) for check in self.checks],
        }


def verify() -> Verification:
    """Tries on this machine what memfit promises: its predictions, exact plans, recovery and speed."""
    begin = time.monotonic()
    memory = budget().devices
    device = f"this CPU ({platform.machine()}), in an arena"
    if memory:
        device = f"{memory[0].name} ({memory[0].total})"
    checks = []
    _log.info("predicting four small trainings")
    for check in run_checks():
        _log.info("%s (%s): %s", check.name, check.of, "pass" if check.passed else "FAIL")
        checks.append(check)
    versions = {**read_versions(), "system": platform.platform()}
    return Verification(tuple(checks), device, versions, time.monotonic() - begin)
