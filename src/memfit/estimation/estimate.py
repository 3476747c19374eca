"""The prediction a person reads: the peak of a phase at a batch size, what it is made of, and what it needs."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, pairwise
from math import hypot
from pathlib import Path
from statistics import pstdev
from typing import Any

from memfit.budgets.gpu_table import GPU
from memfit.errors import InvalidInput
from memfit.estimation.replay.capped import completes, peak_under
from memfit.estimation.replay.naming import KINDS
from memfit.estimation.replay.played import Played
from memfit.estimation.replay.replay import Moment, Peak, moment, peaks
from memfit.estimation.replay.script import STEPS, Allocation, Script
from memfit.sizes import Size
from memfit.tables import table

_MIB = 2**20
# What a prediction may be off but for the order of ops; a step that XLA has compiled is one op.
_PREDICTION_ERROR = 0.03
# Of a large model too few orders are recorded to tell by how much replayed runs differ; this much at least, then.
_FEW_RUNS = 4
_LEAST_OF_FEW = 0.0375


@dataclass(frozen=True)
class Tensor:
    """One tensor that is alive at the peak."""

    bytes: Size
    kind: str
    layer: str
    op: str
    shape: str


@dataclass(frozen=True, repr=False)
class Estimate:
    """The predicted peak memory of one phase at one batch size.

    Attributes:
        batch_size: Samples in a step.
        phase: "train", "validate" or "predict".
        source: Where the figures come from, as a sentence.
        script: The recorded steps, which any batch size is predicted from.
        weights: Bytes of the model's own variables.
        recorded: The batch sizes that were recorded.
        seconds: Time of a step at the largest recorded batch, by layer and pass.
        doubt: What the prediction may be off by beyond the usual, as a part of the peak, where XLA had to be asked
            about a smaller batch.
        device: The GPU that is asked about, or None for this machine's arena.
        others: Gives the estimate of another phase.
    """

    batch_size: int
    phase: str
    source: str
    script: Script = field(compare=False)
    weights: Size
    recorded: tuple[int, ...]
    seconds: Mapping[tuple[str, str], float] = field(compare=False, default_factory=dict)
    doubt: float = 0.0
    device: GPU | None = None
    others: Callable[[str], "Estimate"] | None = field(default=None, compare=False)

    @cached_property
    def played(self) -> Played:
        """What of the script is replayed at this batch size."""
        return Played(self.script, self.batch_size)

    @cached_property
    def replayed(self) -> list[list[Peak]]:
        """The peaks of the steps of each replayed run of five."""
        return peaks(self.played)

    @cached_property
    def peak(self) -> Size:
        """The largest peak to expect in five steps: what TensorFlow would report as peak bytes in use.

        It is the mean over such runs. One step of a run is the first, in which the optimizer's slots leave the
        buffer they share.
        """
        return Size(sum(self._highest) // len(self._highest))

    @cached_property
    def _highest(self) -> list[int]:
        """The peak of each replayed run."""
        return [max(step.bytes for step in run) for run in self.replayed]

    @cached_property
    def at_peak(self) -> Peak:
        """The replayed step that stands for the estimate, whose peak is the nearest to it."""
        return min(chain(*self.replayed), key=lambda step: abs(step.bytes - self.peak))

    @property
    def spread(self) -> tuple[Size, Size]:
        """The lowest and the highest peak of a step: threads run ops in another order in every step."""
        later = [peak.bytes for run in self.replayed for peak in run[1:] or run]
        return Size(min(later)), Size(max(later))

    @cached_property
    def needed(self) -> Size:
        """The memory to run it in: the peak, and what another order of ops and the allocator's gaps may add."""
        least = -(-int((1 + self._error) * self.peak) // _MIB)
        return Size(self._smallest_cap(least) * _MIB + self._guessed)

    @property
    def _error(self) -> float:
        # As errors add up that have nothing to do with each other.
        return hypot(_PREDICTION_ERROR, self._deviation) + self.doubt

    @property
    def _deviation(self) -> float:
        """The standard deviation of the peaks of replayed runs, as a part of the peak: orders of ops differ."""
        found = pstdev(self._highest) / self.peak
        many = len(self._highest) >= _FEW_RUNS and len(self.script.ends) > 2 * STEPS
        return found if many or self.script.compiled else max(found, self.played.deviation, _LEAST_OF_FEW)

    def _smallest_cap(self, least: int) -> int:
        """The smallest limit in MiB, from `least` on, under which all replayed steps complete."""
        low, high = least - 1, least
        while not completes(self.played, high * _MIB):
            low, high = high, high + max(1, high // 32)
        while high - low > max(1, high // 256):
            middle = (low + high) // 2
            low, high = (low, middle) if completes(self.played, middle * _MIB) else (middle, high)
        return high

    @property
    def margin(self) -> float:
        """How much more than the peak is needed, as a part of the peak."""
        return self.needed / self.peak - 1

    @cached_property
    def _guessed(self) -> int:
        """What a GPU's kernels may want as workspace and no recording on a CPU can show."""
        return self.device.workspace_guess(self.peak) if self.device is not None else 0

    @cached_property
    def _at_peak(self) -> Moment:
        return moment(self.played, self.at_peak)

    @cached_property
    def breakdown(self) -> Mapping[str, Size]:
        """Bytes by kind at the peak; they add up to it.

        The peak lies between those of two replayed steps, and so does each part.
        """
        steps = list(chain(*self.replayed))
        below = max((step for step in steps if step.bytes <= self.peak), default=self.at_peak)
        above = min((step for step in steps if step.bytes >= self.peak), default=self.at_peak)
        part = (self.peak - below.bytes) / max(1, above.bytes - below.bytes)
        low, high = self._kinds(below), self._kinds(above)
        sums = Counter({kind: round((1 - part) * low[kind] + part * high[kind]) for kind in KINDS})
        sums["rounding"] = self.peak - sum(sums.values())
        return self.with_known_weights(sums)

    def _kinds(self, peak: Peak) -> Counter[str]:
        """Bytes asked for by kind at a step's peak."""
        sums: Counter[str] = Counter()
        for allocation, asked, _ in moment(self.played, peak).living:
            sums[allocation.kind] += asked
        return sums

    def with_known_weights(self, sums: Mapping[str, int]) -> dict[str, Size]:
        """Returns sums by kind with the weights' part right.

        An update may move a weight or a slot to a new buffer, and the buffer does not say which: their sum is seen,
        and the weights' part of it is known.
        """
        kept = sums["weights"] + sums["optimizer state"]
        weights = min(kept, self.weights)
        parts = {**sums, "weights": weights, "optimizer state": kept - weights}
        return {kind: Size(parts.get(kind, 0)) for kind in KINDS}

    def top(self, count: int = 10) -> tuple[Tensor, ...]:
        """Returns the largest tensors that are alive at the peak."""
        largest = sorted(self._at_peak.living, key=lambda item: -item[1])[:count]
        return tuple(Tensor(Size(asked), a.kind, a.layer, a.op, a.shape) for a, asked, _ in largest)

    @property
    def timeline(self) -> tuple[Allocation, ...]:
        """The allocations of the recorded steps, in order of birth, with their bytes as a function of the batch."""
        return self.script.allocations

    def step(self, index: int = -1) -> tuple[Allocation, ...]:
        """Returns the allocations born in one of the replayed steps, the last unless told."""
        ends = self.script.ends
        begin, end = list(pairwise(ends))[index]
        return tuple(self.script.allocations[code] for code in self.script.order[begin:end] if code >= 0)

    def at(self, batch_size: int) -> "Estimate":
        """Returns the estimate at another batch size, from the same recording."""
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise InvalidInput(
                "A batch has at least one sample", received=batch_size, remedy="Give a whole number"
            )
        return replace(self, batch_size=batch_size)

    def in_one_piece(self, *, before_the_optimizer: bool = False) -> "Estimate":
        """Returns the estimate where what is left of the memory is taken as one region before the first step.

        Args:
            before_the_optimizer: Whether the optimizer's state is only made after that, as sums of gradients are.
        """
        made_later = {"gradients", "optimizer state"} if before_the_optimizer else {"gradients"}
        kinds = [variable.kind for variable in self.script.allocations[: self.script.variables]]
        there = next((n for n, kind in enumerate(kinds) if kind in made_later), len(kinds))
        return replace(self, script=replace(self.script, one_piece=there))

    def fits(self, memory: int | str) -> bool:
        """Whether the phase fits into `memory`, with the margin it needs."""
        available = Size(memory) - self._guessed
        enough = available >= (1 + self._error) * self.peak
        return enough and completes(self.played, available)

    def peak_in(self, memory: int | str) -> Size:
        """Returns the peak where there is only so much, with gaps that are used too; `peak` if it does not fit."""
        return Size(peak_under(self.played, Size(memory)) or self.peak)

    def max_batch(self, memory: int | str) -> int:
        """Returns the largest batch size that fits into `memory` with its margin, 0 if none does."""
        memory = Size(memory)
        low, high = 0, 1
        while high <= 2**20 and self.at(high).fits(memory):
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.at(middle).fits(memory) else (low, middle)
        return low

    @property
    def validate(self) -> "Estimate":
        """The estimate of a validation step at the same batch size."""
        return self._other("validate")

    @property
    def predict(self) -> "Estimate":
        """The estimate of a prediction step at the same batch size."""
        return self._other("predict")

    def _other(self, phase: str) -> "Estimate":
        if self.others is None:
            raise InvalidInput(
                "Only the estimate of the training leads to the other phases", received=self.phase
            )
        return replace(self.others(phase), batch_size=self.batch_size)

    def plot(self, path: str | Path, *, memory: int | str | None = None) -> Path:
        """Writes the timeline of a step as one HTML file that opens offline, with a budget as a line."""
        from memfit.reporting.timeline import write_plot

        return write_plot(self, Path(path), None if memory is None else Size(memory))

    def to_json(self) -> dict[str, Any]:
        """Returns the figures as plain data."""
        return {
            "phase": self.phase,
            "batch_size": self.batch_size,
            "source": self.source,
            "recorded_batches": list(self.recorded),
            "device": None if self.device is None else self.device.name,
            "peak": int(self.peak),
            "spread": [int(size) for size in self.spread],
            "needed": int(self.needed),
            "margin": round(self.margin, 4),
            "breakdown": {kind: int(size) for kind, size in self.breakdown.items()},
            "top": [
                {"bytes": int(t.bytes), "kind": t.kind, "layer": t.layer, "op": t.op, "shape": t.shape}
                for t in self.top()
            ],
        }

    def __repr__(self) -> str:
        low, high = self.spread
        head = f"Estimate: {self.phase}, batch {self.batch_size}: peak {self.peak} (predicted)"
        rows = [[kind, size, f"{size / self.peak:.0%}"] for kind, size in self.breakdown.items() if size]
        largest = [[t.bytes, t.kind, t.layer or t.op] for t in self.top(5)]
        lines = [
            head,
            "",
            table([*rows, ["together", self.peak, "100%"]], right=[1, 2]),
            "",
            f"steps peak between {low} and {high}; to run it needs {self.needed} ({self.margin:+.1%})",
            f"source: {self.source}",
            "",
            "largest tensors at the peak",
            table(largest, right=[0]),
        ]
        if self.device is not None:
            lines.insert(
                -3, f"of that, {Size(self._guessed)} is a guess for {self.device.name}'s kernel workspace"
            )
        return "\n".join(lines)
