"""What recordings have shown of a job's step, and what follows for the ways and sizes that were not recorded."""

import math
from typing import Protocol

from memfit.estimation.estimate import Estimate
from memfit.planning.candidates import Way, predicted_saving

PARTS_RECORDED = 2  # of a step in parts


class Recorder(Protocol):
    """Estimates steps by recording them."""

    def __call__(self, way: Way, size: int) -> Estimate:
        """Records a step that is computed in some way, where so many samples pass at once."""

    def begin(self, size: int) -> None:
        """Gets ready to record a step of so many samples, before it is known in which way it is computed."""

    def expect(self, way: Way) -> None:
        """Records a way that is likely to be asked for, where `begin` got ready for one."""


# Batches beside one that have to fit as well, as parts of it. The allocator's gaps fall otherwise at every size,
# and in every process, where small ops run in another order: a MobileNetV2 replayed to fit with 70 samples and
# not with 71 trained twice and ran out once; a ResNet50 with 81 trained once and ran out once.
_BESIDE = (1.08, 1.04, 0.97, 0.94, 0.91)


class RecordedStep:
    """The peak of one way to compute a step at any batch size, replayed at few of them.

    Between two powers of two the peak is taken to lie on a line. It is the largest of several moments that each
    grow with the batch, so the line is above it. A compiled estimate has lines of its own.

    What a step needs beyond its peak is the allocator's gaps. They are looked at for one batch, and again for every
    batch that may fit or not: under just this limit the regions may fall so that there are fewer. But a batch that
    fits where those beside it do not has only been lucky in the replay.
    """

    def __init__(self, estimate: Estimate, memory: int, size: int) -> None:
        """Takes an estimate, and looks at what it needs beyond its peak.

        Args:
            estimate: From a recording of the step.
            memory: What it has to fit into.
            size: The batch to look at.
        """
        self.estimate, self._memory = estimate, memory
        self._known: dict[int, int] = {}
        self._fits: dict[int, bool] = {}
        self._fits_alone: dict[int, bool] = {}
        found = at(estimate, size)
        self._known[size] = int(found.peak)
        self._margin = found.margin

    def look_at(self, size: int) -> None:
        """Replays a batch size itself, or compiles it for the GPU that is planned for."""
        found = self.estimate.at(size)
        if found.compiled:
            # From now on the lines to other sizes go through it.
            for kept in (self._known, self._fits, self._fits_alone):
                kept.clear()
            self._margin = found.margin
        self._learn(found)

    def peak(self, size: int) -> int:
        """The predicted peak."""
        if size in self._known or self.estimate.compiled:
            return self._replayed(size)
        low = 2 ** (size.bit_length() - 1)
        below = self._replayed(low)
        if low == size:
            return below
        return below + (self._replayed(2 * low) - below) * (size - low) // low

    def need(self, size: int) -> int:
        """The predicted peak with its margin; more than the memory where it does not fit."""
        peak = self.peak(size)
        need = math.ceil(peak * (1 + self._margin))
        if size not in self._fits and peak < self._memory < need:
            self._learn(at(self.estimate, size))
        if size not in self._fits:
            return need
        return min(need, self._memory) if self._fits[size] else max(need, self._memory + 1)

    def _learn(self, found: Estimate) -> None:
        self._known[found.batch_size] = int(found.peak)
        self._fits_alone[found.batch_size] = bool(found.fits(self._memory))
        beside = () if found.compiled else _BESIDE
        sizes = [found.batch_size, *(max(1, round(part * found.batch_size)) for part in beside)]
        self._fits[found.batch_size] = all(map(self._alone, sizes))

    def _alone(self, size: int) -> bool:
        """Whether a batch fits, whatever becomes of those beside it."""
        if size not in self._fits_alone:
            self._fits_alone[size] = bool(at(self.estimate, size).fits(self._memory))
        return self._fits_alone[size]

    def _replayed(self, size: int) -> int:
        if size not in self._known:
            self._known[size] = int(at(self.estimate, size).peak)
        return self._known[size]


class RecordedSteps:
    """Every way of computing the job's step that was recorded, the stock step first."""

    def __init__(self, stock: Estimate, memory: int, gradients: int, inputs: int) -> None:
        """Begins with the stock step.

        Args:
            stock: The estimate of the stock step.
            memory: What a step has to fit into.
            gradients: Bytes of one copy of the gradients.
            inputs: Bytes of one sample.
        """
        self.stock = RecordedStep(stock, memory, stock.batch_size)
        self._memory, self._gradients, self._inputs = memory, gradients, inputs
        self._ways: dict[Way, RecordedStep] = {Way(): self.stock}
        self._activations: dict[int, int] = {}
        self._realised = 1.0  # the part of a predicted saving that the last recording found to be real

    def __contains__(self, way: Way) -> bool:
        return way in self._ways

    def add(self, way: Way, estimate: Estimate, size: int) -> None:
        """Takes a recording of a way to compute a step, made for so many samples at a time."""
        without = self.need(Way(None, way.in_parts), size)
        self._ways[way] = RecordedStep(estimate, self._memory, self._batch(way, size))
        if way.segments is not None:
            real = without - self.need(way, size)
            self._realised = max(0.0, real / max(predicted_saving(way.segments, size), 1))

    def look_at(self, way: Way, size: int) -> None:
        """Makes the figures of a recorded way exact for a number of samples at a time."""
        self._ways[way].look_at(self._batch(way, size))

    def filled(self, way: Way, size: int) -> int:
        """What gaps add to the peak of a recorded way where there is no more memory than the job's.

        The stock step's own peak is not held against the memory: where it fits, nothing is planned.
        """
        found = self.of(way)
        if found is None or found is self.stock.estimate:
            return 0
        found = found.at(self._batch(way, size))
        return max(0, found.peak_in(self._memory) - found.peak)

    def of(self, way: Way) -> Estimate | None:
        """The estimate of a way; None where it was not recorded."""
        found = self._ways.get(way)
        return None if found is None else found.estimate

    def need(self, way: Way, size: int) -> int:
        """What a step takes with its margin, where `size` samples pass at once.

        What was not recorded follows from what was: segments save what they predict, as far as that has shown to
        be real, and parts want a copy of the gradients besides.
        """
        if way in self._ways:
            return self._ways[way].need(self._batch(way, size)) - self._waiting(way, size)
        if way.in_parts:
            return self.need(Way(way.segments), size) + self._gradients
        assert way.segments is not None
        saved = int(self._realised * predicted_saving(way.segments, size))
        return self.need(Way(), size) - saved

    def activations(self, size: int) -> int:
        """What of the stock step's peak are activations."""
        if size not in self._activations:
            self._activations[size] = int(at(self.stock.estimate, size).breakdown["activations"])
        return self._activations[size]

    def margin(self, way: Way, size: int) -> int:
        """The part of `need` that is margin; of the nearest way that was recorded."""
        if way in self._ways:
            peak = self._ways[way].peak(self._batch(way, size)) - self._waiting(way, size)
            return self.need(way, size) - peak
        return self.stock.need(size) - self.stock.peak(size)

    def _batch(self, way: Way, size: int) -> int:
        """The batch of a recorded step in which so many samples pass at once."""
        return PARTS_RECORDED * size if way.in_parts else size

    def _waiting(self, way: Way, size: int) -> int:
        """The samples of a recorded batch that are not in the part being computed."""
        return self._inputs * (self._batch(way, size) - size)


def at(found: Estimate, size: int) -> Estimate:
    """The estimate at a batch size; a compiled one is not compiled for each of the many sizes looked at."""
    return found.sketch(size)
