"""One recorded recipe: its peak and need at any batch size, replayed at few of them."""

import math

from memfit.estimation.estimate import Estimate
from memfit.sizes import Size


class RecordedStep:
    """The peak of a recorded step at any batch size, and what it needs in a memory.

    Between two powers of two the peak is taken to lie on a line. It is the largest of several moments that each
    grow with the batch, so the line is above it. A GPU's compiler has lines of its own.

    Args:
        estimate: From a recording of the step.
        batch_size: The batch to look at first.

    Attributes:
        margin: What it needs beside its peak, as a part of that.
    """

    def __init__(self, estimate: Estimate, batch_size: int) -> None:
        self.estimate = estimate
        self._fits: dict[tuple[int, int], bool] = {}  # by batch and memory
        self._filled: dict[tuple[int, int], int] = {}
        first = estimate.sketch(batch_size)
        self._peaks = {batch_size: int(first.peak)}
        self.margin = first.margin
        self._within: dict[int, _PartOfBatch] = {}

    def within(self, whole: int) -> "RecordedStep":
        """Returns this step, which is in micro-batches, for a batch of more of them."""
        if not self.estimate.made_from.left_by_parts:
            return self
        if whole not in self._within:
            self._within[whole] = _PartOfBatch(self, whole)
        return self._within[whole]

    @property
    def by_compiler(self) -> bool:
        """Whether a GPU's compiler gave the figures."""
        return self.estimate.compiled

    def look_at(self, batch_size: int, memory: int) -> None:
        """Replays a batch size in a memory, or compiles it for the GPU that is planned for."""
        exact = self.estimate.at(batch_size)
        if self.by_compiler:  # from now on the lines to other sizes go through it
            self._peaks.clear()
            self._fits.clear()
            self.margin = exact.margin
        self._learn(exact, memory)

    def peak(self, batch_size: int) -> int:
        """The predicted peak."""
        if batch_size in self._peaks or self.by_compiler:
            return self._replayed(batch_size)
        low = 2 ** (batch_size.bit_length() - 1)
        below = self._replayed(low)
        if low == batch_size:
            return below
        return below + (self._replayed(2 * low) - below) * (batch_size - low) // low

    def need(self, batch_size: int, memory: int) -> int:
        """The predicted peak with its margin; more than the memory where it does not fit."""
        peak = self.peak(batch_size)
        need = math.ceil(peak * (1 + self.margin))
        asked = (batch_size, memory)
        if asked not in self._fits and peak < memory < need:
            # Under just this limit there may be fewer gaps between tensors than elsewhere.
            self._learn(self.estimate.sketch(batch_size), memory)
        if asked not in self._fits:
            return need
        return min(need, memory) if self._fits[asked] else max(need, memory + 1)

    def needed(self, batch_size: int) -> int:
        """The smallest memory in which `fits` says yes."""
        return int(self.estimate.sketch(batch_size).prediction.needed)

    def filled(self, batch_size: int, memory: int) -> int:
        """What gaps between tensors add to the peak where there is no more memory than this."""
        estimate, asked = self.estimate.sketch(batch_size), (batch_size, memory)
        if memory <= estimate.peak:  # then so is all that can be filled, and a replay tells nothing more
            return 0
        if asked not in self._filled:
            self._filled[asked] = max(0, estimate.peak_in(memory) - estimate.peak)
        return self._filled[asked]

    def activations(self, batch_size: int) -> int:
        """What of the peak are activations."""
        return int(self.estimate.sketch(batch_size).breakdown["activations"])

    def slower_than(self, other: "RecordedStep") -> float | None:
        """How much longer it takes than another step, as a part of that; None without a compiler."""
        mine, others = self.estimate.step_time, other.estimate.sketch(self.estimate.batch_size).step_time
        return None if mine is None or others is None else max(0.0, mine / others - 1)

    def _learn(self, estimate: Estimate, memory: int) -> None:
        self._peaks[estimate.batch_size] = int(estimate.peak)
        fits = memory > 0 and estimate.prediction.needs_at_most(Size(memory))
        self._fits[estimate.batch_size, memory] = fits

    def _replayed(self, batch_size: int) -> int:
        if batch_size not in self._peaks:
            self._peaks[batch_size] = int(self.estimate.sketch(batch_size).peak)
        return self._peaks[batch_size]


class _PartOfBatch(RecordedStep):
    """A step in micro-batches that leave something for the update.

    What those leave that were not recorded is added. A batch that is looked at is replayed instead, with what the
    update makes of all that.
    """

    def __init__(self, step: RecordedStep, whole: int) -> None:
        self.estimate = step.estimate.within(whole)
        self._step, self._whole = step, whole
        self._fits, self._filled = {}, {}
        self._peaks = {}
        self.margin = step.margin

    def peak(self, batch_size: int) -> int:
        if batch_size in self._peaks:
            return self._peaks[batch_size]
        left = self.estimate.made_from.left_by_parts * max(0, self._whole - batch_size)
        return self._step.peak(batch_size) + int(left)
