"""What changed between two runs, estimates or plans: peaks, kinds of memory, layers, levers."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from memfit.errors import InvalidInput
from memfit.planning.plan import Plan
from memfit.sizes import Size
from memfit.training.records.files import find_record
from memfit.training.records.record import RunRecord

NO_LAYER = "(outside of layers)"


@dataclass(frozen=True)
class Side:
    """One of the two that are compared.

    Attributes:
        name: What it is, such as "run 3fa9c1" or "plan before.json".
        predicted: Its predicted peak, or None.
        measured: Its measured peak, or None.
        kinds: Bytes by kind at the predicted peak; empty where no step was recorded.
        layers: Bytes by layer there.
        levers: The settings of the levers that are used.
        facts: Everything else worth comparing, as text.
    """

    name: str
    predicted: Size | None = None
    measured: Size | None = None
    kinds: Mapping[str, int] = field(default_factory=dict)
    layers: Mapping[str, int] = field(default_factory=dict)
    levers: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """The bytes that something has on both sides."""

    name: str
    before: Size
    after: Size

    @property
    def growth(self) -> int:
        """How much more it is after; negative where it is less."""
        return self.after - self.before


@dataclass(frozen=True)
class Comparison:
    """Two sides, and what differs.

    Attributes:
        before: The first.
        after: The second.
    """

    before: Side
    after: Side

    @property
    def peak(self) -> Difference | None:
        """The peaks: measured where both are, predicted where both are, otherwise None."""
        for name in ("measured", "predicted"):
            before, after = getattr(self.before, name), getattr(self.after, name)
            if before is not None and after is not None:
                return Difference(name, before, after)
        return None

    @property
    def kinds(self) -> tuple[Difference, ...]:
        """Every kind of memory at the predicted peaks; empty where one side was not recorded."""
        return _pair(self.before.kinds, self.after.kinds)

    @property
    def layers(self) -> tuple[Difference, ...]:
        """Every layer at the predicted peaks, the largest change first."""
        return tuple(sorted(_pair(self.before.layers, self.after.layers), key=lambda each: -abs(each.growth)))

    @property
    def changes(self) -> tuple[tuple[str, str, str], ...]:
        """Levers and facts that differ: name, before, after."""
        sides = [(self.before.levers, self.after.levers), (self.before.facts, self.after.facts)]
        return tuple(
            (name, before.get(name, "-"), after.get(name, "-"))
            for before, after in sides
            for name in dict.fromkeys((*before, *after))
            if before.get(name) != after.get(name)
        )

    def grows_beyond(self, part: float) -> bool:
        """Whether the peak grows by more than a part of what it was before.

        Raises:
            InvalidInput: If the two have no peak of the same sort.
        """
        if self.peak is None:
            raise InvalidInput(
                "Peaks can be compared if both are measured or both are predicted",
                received=f"{self.before.name}: {_known(self.before)}; {self.after.name}: {_known(self.after)}",
                remedy="Compare two runs in an arena or on a GPU, two plans, or two estimates",
            )
        return self.peak.growth > part * self.peak.before

    def to_json(self) -> dict[str, Any]:
        """Returns the comparison as plain data, sizes in bytes."""
        peak = self.peak
        return {
            "before": self.before.name,
            "after": self.after.name,
            "peak": None if peak is None else {"of": peak.name, **_plain(peak)},
            "kinds": {each.name: _plain(each) for each in self.kinds},
            "layers": {each.name: _plain(each) for each in self.layers},
            "changes": [list(change) for change in self.changes],
        }


def compare(before: str, after: str) -> Comparison:
    """Compares two runs, estimates or plans, each by what a person types: a run's name, or a JSON file.

    Raises:
        InvalidInput: If one of them is none of these.
    """
    return Comparison(read_side(before), read_side(after))


def read_side(name: str) -> Side:
    """Reads a run, an estimate or a plan.

    Args:
        name: A run as `memfit runs` names it, or the JSON file of a run, an estimate or a plan.

    Raises:
        InvalidInput: If it is none of these.
    """
    file = Path(name)
    if file.suffix != ".json":
        return _side_of_run(find_record(name)[1])
    try:
        data = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"The file cannot be read ({error})", received=name) from error
    fields = data if isinstance(data, dict) else {}
    if "marks" in fields:
        return _side_of_run(RunRecord.from_json(fields))
    if "recipe" in fields:
        return _side_of_plan(f"plan {file.name}", Plan.from_json(fields))
    if "breakdown" in fields and "phase" in fields:
        return _side_of_estimate(f"estimate {file.name}", fields)
    raise InvalidInput(
        "The file holds neither a run nor an estimate nor a plan",
        received=name,
        remedy="Write one with `memfit estimate --json`, `memfit plan --output`, or name a run of `memfit runs`",
    )


def _side_of_run(record: RunRecord) -> Side:
    plan = record.plan
    planned = Side("") if plan is None else _side_of_plan("", plan)
    facts = {
        "model": record.model,
        **planned.facts,
        "batch": str(record.batch_size),
        "ended": record.state,
        "shortages": str(len(record.of_kind("out of memory"))),
        "restarts": str(record.restarts),
        "host peak": str(record.host_peak),
        **{name: str(value) for name, value in record.facts.items()},
        **record.versions,
    }
    if record.memory is not None:
        facts["memory"] = str(record.memory)
    if record.step_seconds is not None:
        facts["measured time of a step"] = f"{1000 * record.step_seconds:.1f} ms"
    return replace(planned, name=f"run {record.id}", measured=record.device_peak, facts=facts)


def _side_of_plan(name: str, plan: Plan) -> Side:
    timeline = plan.timeline
    shares = () if timeline is None else ((share.layer, int(share.bytes)) for share in timeline.shares)
    return Side(
        name,
        plan.predicted,
        kinds={} if timeline is None else {kind: int(size) for kind, size in timeline.breakdown.items()},
        layers=_add_up(shares),
        levers={lever.name: lever.setting or "used" for lever in plan.levers if lever.used},
        facts={
            "batch": str(plan.batch_size),
            "memory": str(plan.memory),
            "fidelity": str(plan.fidelity),
            "peak of stock Keras (predicted)": str(plan.stock),
            "step time, of stock's (predicted)": f"{plan.time:.2f}x",
        },
    )


def _side_of_estimate(name: str, data: Mapping[str, Any]) -> Side:
    try:
        return Side(
            name,
            Size(data["peak"]),
            kinds={str(kind): int(size) for kind, size in data["breakdown"].items()},
            layers=_add_up((str(share["layer"]), int(share["bytes"])) for share in data.get("shares", ())),
            facts={
                "phase": str(data["phase"]),
                "batch": str(data["batch_size"]),
                "needed": str(Size(data["needed"])),
                "device": str(data.get("device") or "this machine"),
            },
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(
            f"The file is not an estimate written by memfit ({error})", received=name
        ) from error


def _add_up(shares: Iterable[tuple[str, int]]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for layer, size in shares:
        sums[layer or NO_LAYER] += size
    return dict(sums)


def _pair(before: Mapping[str, int], after: Mapping[str, int]) -> tuple[Difference, ...]:
    if not before or not after:
        return ()
    return tuple(
        Difference(name, Size(before.get(name, 0)), Size(after.get(name, 0)))
        for name in dict.fromkeys((*before, *after))
    )


def _plain(difference: Difference) -> dict[str, int]:
    return {"before": int(difference.before), "after": int(difference.after)}


def _known(side: Side) -> str:
    known = [name for name in ("measured", "predicted") if getattr(side, name) is not None]
    return " and ".join(known) or "no peak"
