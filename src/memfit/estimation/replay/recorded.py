"""Predictions from a recording: replayed at the batch size asked about, without a limit and under one."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cached_property
from itertools import chain
from typing import Any

from memfit.budgets.gpu_table import GPU
from memfit.estimation import margins
from memfit.estimation.replay.capped import completes, peak_under
from memfit.estimation.replay.naming import KINDS
from memfit.estimation.replay.played import Played
from memfit.estimation.replay.replay import Moment, Peak, course, find_peaks, moment
from memfit.estimation.replay.script import Script
from memfit.estimation.source import LARGEST_BATCH, Course, Tensor, Unknown
from memfit.sizes import Size

_MIB = 2**20
# Batch sizes whose replays are kept, some MiB each.
_KEPT = 8


class RecordedSource:
    """A recording as the `Source` of an estimate.

    Attributes:
        script: The recorded steps.
        text: Where the figures come from, as a sentence.
        weights: Bytes of the model's own variables.
        batches: The batch sizes that were recorded.
        doubt: What the prediction may be off by beyond the usual, as a part of the peak, where XLA had to be asked
            about a smaller batch.
        device: The GPU that is asked about, or None for this machine's arena.
        compiled: False: a further batch size takes milliseconds.
        fixed_batch: The only batch size that the model allows, or None.
        whole: Samples in the batch that is computed in more micro-batches than were recorded, or None.
    """

    compiled = False

    def __init__(
        self,
        script: Script,
        text: str,
        weights: int,
        batches: tuple[int, ...],
        *,
        doubt: float = 0.0,
        device: GPU | None = None,
        seconds: Sequence[tuple[int, float]] = (),
        fixed_batch: int | None = None,
    ) -> None:
        self.script, self.text, self.weights, self.batches = script, text, Size(weights), batches
        self.doubt, self.device, self._seconds = doubt, device, tuple(seconds)
        self.fixed_batch = fixed_batch
        self._kept: dict[int, ReplayedStep] = {}
        self.whole: int | None = None

    @property
    def left_by_parts(self) -> float:
        return self.script.left_by_parts

    def within(self, whole: int) -> "RecordedSource":
        other = copy(self)
        other.whole = whole
        return other

    def at(self, batch: int) -> "ReplayedStep":
        if batch not in self._kept:
            if len(self._kept) >= _KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[batch] = ReplayedStep(self, batch)
        return self._kept[batch]

    def fixed_part(self, batch: int) -> float:
        """The part of a step's time that does not depend on the batch, from the recorded steps of two sizes."""
        if len(self._seconds) < 2:
            return 0.0
        (small, least), (large, most) = self._seconds[0], self._seconds[-1]
        each = max(0.0, (most - least) / (large - small))
        fixed = max(0.0, least - small * each)
        return fixed / max(fixed + batch * each, 1e-9)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_kept": {}}  # on disk, and in a copy, the script is enough

    def sketch(self, batch: int) -> "ReplayedStep":
        """Predicts a batch size; the same as `at`."""
        return self.at(batch)

    def max_batch(self, memory: Size, start: int) -> int:
        """Finds the largest batch size that fits, 0 for none; `start` does not matter."""
        if self.fixed_batch is not None:
            return self.fixed_batch if self.at(self.fixed_batch).needs_at_most(memory) else 0
        low, high = 0, 1
        while high <= LARGEST_BATCH and self.at(high).needs_at_most(memory):
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.at(middle).needs_at_most(memory) else (low, middle)
        return low


class ReplayedStep:
    """The `Prediction` of a recorded step at one batch size.

    Attributes:
        step_time: None: a CPU's times say nothing of a GPU's.
        told_by: What the peak is, for a person.
    """

    step_time: float | None = None
    told_by = "predicted"

    def __init__(self, source: RecordedSource, batch: int) -> None:
        self._source = source
        self._played = Played(source.script, batch, source.whole)

    @cached_property
    def _steps(self) -> list[list[Peak]]:
        """The peaks of the steps of each replayed run of five."""
        return find_peaks(self._played)

    @cached_property
    def _runs(self) -> list[int]:
        """The peak of each replayed run."""
        return [max(step.bytes for step in run) for run in self._steps]

    @cached_property
    def peak(self) -> Size:
        """The mean peak of runs of five steps.

        One step of a run is the first, in which the optimizer's slots leave the buffer they share.
        """
        return Size(sum(self._runs) // len(self._runs))

    @property
    def spread(self) -> tuple[Size, Size]:
        """The lowest and the highest peak of a step after the first."""
        later = [peak.bytes for run in self._steps for peak in run[1:] or run]
        return Size(min(later)), Size(max(later))

    @property
    def _error(self) -> float:
        """What the peak may be off, as a part of it."""
        return margins.PREDICTION_ERROR + self._source.doubt

    @cached_property
    def _workspace(self) -> int:
        """What a GPU's kernels may want as workspace and no recording on a CPU can show."""
        return self._source.device.workspace_guess(self.peak) if self._source.device is not None else 0

    @cached_property
    def _cap(self) -> "SmallestCap":
        least = -(-int((1 + self._error) * self.peak) // _MIB)
        return SmallestCap(lambda cap: completes(self._played, cap * _MIB), least)

    @cached_property
    def needed(self) -> Size:
        """The smallest cap at which replayed runs complete, and not less than the peak with its error."""
        return Size(self._cap.find() * _MIB + self._workspace)

    def needs_at_most(self, memory: Size) -> bool:
        return self._cap.is_at_most((memory - self._workspace) // _MIB)

    @property
    def unknown(self) -> tuple[Unknown, ...]:
        error = int(self._error * self.peak)
        gaps = self.needed - self._workspace - self.peak - error
        parts = [
            Unknown("prediction", Size(error), f"{self._error:.1%} of the peak: orders of ops differ"),
            Unknown("allocator", Size(max(0, gaps)), "replayed: regions and gaps under a limit"),
        ]
        if self._source.device is not None:
            parts.append(
                Unknown(
                    "kernel workspace",
                    Size(self._workspace),
                    f"guess: chosen on the {self._source.device.name}",
                )
            )
        return tuple(parts)

    def peak_in(self, memory: Size) -> Size:
        """The peak where there is only so much, with gaps that are used too; `peak` if it does not fit."""
        return Size(peak_under(self._played, memory) or self.peak)

    @cached_property
    def _at_peak(self) -> Peak:
        """The replayed step that stands for the estimate, whose peak is the nearest to it."""
        return min(chain(*self._steps), key=lambda step: abs(step.bytes - self.peak))

    @cached_property
    def _moment(self) -> Moment:
        return moment(self._played, self._at_peak)

    @cached_property
    def breakdown(self) -> Mapping[str, Size]:
        """Bytes by kind at the peak; they add up to it.

        The peak lies between those of two replayed steps, and so does each part.
        """
        steps = list(chain(*self._steps))
        below = max((step for step in steps if step.bytes <= self.peak), default=self._at_peak)
        above = min((step for step in steps if step.bytes >= self.peak), default=self._at_peak)
        part = (self.peak - below.bytes) / max(1, above.bytes - below.bytes)
        low, high = self._kinds(below), self._kinds(above)
        sums = Counter({kind: round((1 - part) * low[kind] + part * high[kind]) for kind in KINDS})
        sums["rounding"] = self.peak - sum(sums.values())
        return self._with_known_weights(sums)

    def _kinds(self, peak: Peak) -> Counter[str]:
        """Bytes asked for by kind at a step's peak."""
        sums: Counter[str] = Counter()
        for allocation, asked, _ in moment(self._played, peak).living:
            sums[allocation.kind] += asked
        return sums

    def _with_known_weights(self, sums: Mapping[str, int]) -> dict[str, Size]:
        """Returns sums by kind with the weights' part right.

        An update may move a weight or a slot to a new buffer, and the buffer does not say which: their sum is seen,
        and the weights' part of it is known.
        """
        kept = sums["weights"] + sums["optimizer state"]
        weights = min(kept, self._source.weights)
        parts = {**sums, "weights": weights, "optimizer state": kept - weights}
        return {kind: Size(parts.get(kind, 0)) for kind in KINDS}

    def top(self, count: int) -> tuple[Tensor, ...]:
        living = zip(self._moment.living, self._moment.lives, strict=True)
        largest = sorted(living, key=lambda item: -item[0][1])[:count]
        return tuple(
            Tensor(Size(asked), a.kind, a.layer, a.op, a.shape, *life) for (a, asked, _), life in largest
        )

    def course(self) -> Course:
        """The course of the step that stands for the estimate."""
        layers: Counter[str] = Counter()
        for allocation, asked, _ in self._moment.living:
            if allocation.layer:
                layers[allocation.layer] += asked
        sums = [self._with_known_weights(sums) for sums in course(self._played, self._at_peak.run)]
        return Course(sums, self._at_peak.where, Size(self._at_peak.bytes), layers)

    @property
    def remarks(self) -> list[str]:
        low, high = self.spread
        more = self.needed / self.peak - 1
        lines = [f"single steps peak between {low} and {high}; to run it needs {self.needed} ({more:+.1%})"]
        if self._source.device is not None:
            name = self._source.device.name
            lines.append(f"of that, {Size(self._workspace)} is a guess for {name}'s kernel workspace")
        return lines

    def facts(self) -> dict[str, Any]:
        """The batch sizes that were recorded."""
        return {"recorded_batches": list(self._source.batches)}


class SmallestCap:
    """The smallest cap at which a step completes, looked for only as far as a question needs.

    Which caps are tried depends on none of the questions, so that the same question has the same answer, and what
    is said to be needed is said to be enough. Caps are in MiB.

    Args:
        completes: Tells whether a step completes under a cap.
        least: The smallest cap to try.
    """

    def __init__(self, completes: Callable[[int], bool], least: int) -> None:
        self._completes = completes
        self._too_small, self._enough = least - 1, least
        self._seen_to_complete = False

    def is_at_most(self, cap: int) -> bool:
        """Whether the smallest cap is not more than `cap`."""
        while self._too_small < cap and not (self._seen_to_complete and self._enough <= cap):
            if not self._look():
                return False
        return self._too_small < cap

    def find(self) -> int:
        """Finds the smallest cap."""
        while self._look():
            pass
        return self._enough

    def _look(self) -> bool:
        """Tries one more cap; returns whether there was one to try."""
        if not self._seen_to_complete:
            if self._completes(self._enough):
                self._seen_to_complete = True
            else:
                self._too_small, self._enough = self._enough, self._enough + max(1, self._enough // 32)
            return True
        if self._enough - self._too_small <= max(1, self._enough // 256):
            return False
        middle = (self._too_small + self._enough) // 2
        if self._completes(middle):
            self._enough = middle
        else:
            self._too_small = middle
        return True
