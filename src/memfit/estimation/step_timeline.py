"""The predicted memory of one step as small plain data, to be kept with a plan and shown in reports."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memfit.errors import InvalidInput
from memfit.estimation.estimate import Estimate
from memfit.estimation.source import Tensor
from memfit.sizes import Size, to_plain

# What a picture of a page's width can show, and what keeps a plan's file at some tens of kilobytes.
_POINTS = 200
_SHARES = 40
_LARGEST = 24


@dataclass(frozen=True)
class Share:
    """What one layer holds of one kind at the peak; the layer "" stands for loss, optimizer and inputs."""

    layer: str
    kind: str
    bytes: Size


@dataclass(frozen=True)
class StepTimeline:
    """The predicted memory of one step.

    Attributes:
        peak: The predicted peak in bytes; the sum of `breakdown`.
        breakdown: Bytes by kind at the peak.
        shares: Bytes by layer and kind at the peak, largest first; small ones are summed up as layer "...".
        kinds: The names of the columns of `sums`.
        positions: Where in the step each row of `sums` is, from 0.0 to 1.0 in the order of allocations.
        sums: Bytes in use by kind, one row for each position.
        top: Index of the row of the peak.
        largest: The largest tensors at the peak, with where in the step each begins and ends.
    """

    peak: Size
    breakdown: Mapping[str, Size]
    shares: tuple[Share, ...] = ()
    kinds: tuple[str, ...] = ()
    positions: tuple[float, ...] = ()
    sums: tuple[tuple[int, ...], ...] = ()
    top: int = 0
    largest: tuple[Tensor, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns plain data that `from_json` reads, sizes in bytes."""
        return to_plain(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "StepTimeline":
        """Reads what `to_json` returned."""
        return cls(
            peak=Size(data["peak"]),
            breakdown={kind: Size(size) for kind, size in data["breakdown"].items()},
            shares=tuple(Share(**{**share, "bytes": Size(share["bytes"])}) for share in data["shares"]),
            kinds=tuple(data["kinds"]),
            positions=tuple(data["positions"]),
            sums=tuple(tuple(row) for row in data["sums"]),
            top=data["top"],
            largest=tuple(Tensor(**{**each, "bytes": Size(each["bytes"])}) for each in data["largest"]),
        )


def timeline_of(estimate: Estimate) -> StepTimeline:
    """Returns the timeline of an estimate; without positions and sums where a GPU's compiler gave the figures."""
    prediction = estimate.prediction
    living = prediction.top(2**31)
    timeline = StepTimeline(
        estimate.peak, prediction.breakdown, _share(living), largest=tuple(map(_rounded, living[:_LARGEST]))
    )
    try:
        course = prediction.course()
    except InvalidInput:
        return timeline
    moments = course.sums
    shown = sorted({*range(0, len(moments), max(1, len(moments) // _POINTS)), course.top})
    kinds = tuple(kind for kind in prediction.breakdown if any(moments[at][kind] for at in shown))
    return replace(
        timeline,
        kinds=kinds,
        positions=tuple(round(at / len(moments), 4) for at in shown),
        sums=tuple(tuple(int(moments[at][kind]) for kind in kinds) for at in shown),
        top=shown.index(course.top),
    )


def _share(living: Sequence[Tensor]) -> tuple[Share, ...]:
    """Adds up what is alive by layer and kind, small shares as one."""
    sums: Counter[tuple[str, str]] = Counter()
    for tensor in living:
        sums[tensor.layer, tensor.kind] += tensor.bytes
    largest = sums.most_common(_SHARES)
    rest: Counter[str] = Counter()
    for (_, kind), size in sums.most_common()[_SHARES:]:
        rest[kind] += size
    return (
        *(Share(layer, kind, Size(size)) for (layer, kind), size in largest),
        *(Share("...", kind, Size(size)) for kind, size in rest.most_common()),
    )


def _rounded(tensor: Tensor) -> Tensor:
    return replace(tensor, born=round(tensor.born, 4), freed=round(tensor.freed, 4))
