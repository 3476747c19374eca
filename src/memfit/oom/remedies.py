"""The changes that help most against each way of running out, best first, from `remedies.toml`."""

import tomllib
from dataclasses import replace
from pathlib import Path

from memfit.oom.explanation import Change, Explanation, Kind

_TABLES = tomllib.loads(Path(__file__).with_name("remedies.toml").read_text())
_CHANGES = {
    name: Change(row["do"], row["why"], Kind(row.get("kind", Kind.OTHER)))
    for name, row in _TABLES["change"].items()
}
_BY_PHASE: dict[str, list[str]] = _TABLES["phase"]
_BY_CAUSE: dict[str, list[str]] = _TABLES["cause"]


def find_changes(explanation: Explanation, batch_size: int | None = None) -> tuple[Change, ...]:
    """Returns at most three changes against what ran out, best first."""
    figures = _figures(explanation, batch_size)
    changes = (_CHANGES[name] for name in _choose(explanation))
    return tuple(
        replace(change, do=change.do.format_map(figures), why=change.why.format_map(figures))
        for change in changes
    )


def _choose(explanation: Explanation) -> list[str]:
    phase = explanation.asked.phase if explanation.asked is not None else ""
    if explanation.cause in ("device", "exhausted"):
        return _BY_PHASE.get(phase, _BY_PHASE["other"])
    if explanation.cause not in ("too large", "block"):
        return _BY_CAUSE[explanation.cause]
    if phase or (explanation.cause == "block" and explanation.asked is None):
        smaller = _BY_PHASE.get(phase, _BY_PHASE["other"])
    else:
        smaller = _BY_PHASE["array"]
    # Another allocator helps a GPU; the arena has no other: there only smaller pieces help.
    if explanation.cause == "block" and explanation.device != "arena":
        return ["async", "one_region", smaller[0]]
    return smaller


def _figures(explanation: Explanation, batch_size: int | None) -> dict[str, str]:
    """What stands in the braces of a change's text."""
    asked = explanation.asked
    first = asked.shape[0] if asked is not None and asked.shape else None
    has_batch = asked is not None and asked.phase in ("forward", "validation", "prediction")
    batch = batch_size or (first if has_batch else None)
    half_of = "half of it; " if batch_size else f"half of the tensor's first dimension, {batch}; "
    return {
        # As one writes it in code, rounded down to whole MiB; "80%" of the device where it is not known.
        "memory": f'"{explanation.limit // 2**20}MiB"' if explanation.limit else '"80%"',
        "half": _halve(batch),
        "half_of": half_of if batch is not None and batch > 1 else "",
        "half_of_tensor": _halve(first),
    }


def _halve(samples: int | None) -> str:
    return str(samples // 2) if samples is not None and samples > 1 else "<half of it>"
