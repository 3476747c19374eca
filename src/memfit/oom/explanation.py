"""`Explanation`: what ran out, who asked, what held the memory, and what would help most."""

import textwrap
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from memfit.oom.request import Request
from memfit.sizes import Size, to_plain
from memfit.tables import table

_WIDTH = 98  # with its heads the whole is 109 columns wide
_WORTH_SAYING = 0.05  # of what is in use
_PLACES = {"device": "device memory", "host": "host memory", "block": "a large enough piece of memory"}


class Kind(StrEnum):
    """The kinds of change whose effect on a model can be predicted."""

    FIT = "fit"
    SMALLER_BATCH = "smaller batch"
    OTHER = "other"


@dataclass(frozen=True)
class Change:
    """One thing to do.

    Attributes:
        do: The exact line to write or run.
        why: What it changes, and what it costs.
        kind: What sort of change it is.
        effect: The predicted effect on a model; empty where no model was given.
    """

    do: str
    why: str
    kind: Kind = Kind.OTHER
    effect: str = ""


@dataclass(frozen=True)
class Held:
    """Something that held memory when it ran out."""

    what: str
    size: Size


@dataclass(frozen=True, repr=False)
class Explanation:
    """What a text or an error says about memory that ran out.

    Attributes:
        ran_out: "device", "host", "block" (enough was free, but not in one piece: fragmentation), "nothing"
            (the text only warns) or "unknown".
        cause: The kind of failure, finer than `ran_out`, such as "xla" or "others" (another process).
        says: What happened, as a sentence without its figures.
        device: "GPU:0", "arena", "host", or "" where the text does not say.
        requested: Bytes asked for; None, here and below, where the text does not say.
        limit: Bytes there were in all.
        in_use: Bytes in use.
        largest_free: The largest free piece.
        wasted: Bytes in use beyond what was requested: the allocator's rounding.
        asked: The layer, op, tensor and phase that asked.
        held: What held the memory, largest first.
        failures: The number of failed allocations in the text; the explanation is about the decisive one.
        changes: At most three, best first.
    """

    ran_out: str
    cause: str
    says: str
    device: str = ""
    requested: Size | None = None
    limit: Size | None = None
    in_use: Size | None = None
    largest_free: Size | None = None
    wasted: Size | None = None
    asked: Request | None = None
    held: tuple[Held, ...] = ()
    failures: int = 0
    changes: tuple[Change, ...] = ()

    def __repr__(self) -> str:
        memory = _PLACES.get(self.ran_out, self.ran_out)
        device = f" ({self.device})" if self.device and self.device != self.ran_out else ""
        rows = [
            ("ran out", f"{memory}{device}: {self.says}"),
            ("figures", self._figures()),
            ("asked", "" if self.asked is None else str(self.asked)),
            ("held", ", ".join(f"{held.size} ({held.what})" for held in self.held)),
        ]
        if self.failures > 1:
            rows.append(("note", f"{self.failures} allocations failed; this is about the decisive one"))
        for number, change in enumerate(self.changes, 1):
            rows.append((f"change {number}", change.do))
            rows.append(("", "; ".join(filter(None, (change.why, change.effect)))))
        return table([line for head, text in rows if text for line in _wrap(head, text)])

    def _figures(self) -> str:
        parts = [] if self.requested is None else [f"{self.requested} asked for"]
        if self.limit is not None and self.in_use is not None and self.cause == "others":
            parts.append(f"{self.in_use} in use, below the limit of {self.limit}")
        elif self.limit is not None and self.in_use is not None:
            parts.append(f"{Size(max(self.limit - self.in_use, 0))} free of {self.limit}")
        elif self.in_use is not None:
            parts.append(f"{self.in_use} in use")
        elif self.limit is not None:
            parts.append(f"{self.limit} in total")
        if self.ran_out == "block" and self.largest_free is not None:
            parts.append(f"{self.largest_free} in the largest piece")
        if self.wasted is not None and self.in_use and self.wasted >= _WORTH_SAYING * self.in_use:
            parts.append(f"{self.wasted} lost to the allocator's rounding")
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Returns the explanation as plain data, sizes in bytes."""
        return to_plain(self)


def _wrap(head: str, text: str) -> list[list[str]]:
    lines = textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return [[head if number == 0 else "", line] for number, line in enumerate(lines)]
