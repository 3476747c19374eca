"""What follows from recordings, with estimates that can be worked out by hand."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from memfit import Size
from memfit.planning.candidates import Way
from memfit.planning.largest_batch import LARGEST, largest_batch
from memfit.planning.recorded_steps import RecordedStep, RecordedSteps
from memfit.steps.rematerialisation import Segments

GRADIENTS, INPUTS = 40, 1


@dataclass
class Line:
    """Stands in for an estimate: a fixed part, a part for each sample, and a margin."""

    fixed: int
    each: int
    batch_size: int = 8
    margin: float = 0.0
    replayed: int = 0
    limit: int = 0  # under which the allocator's gaps do not matter
    unlucky: range = range(0)  # batches at which they do

    def fits(self, memory: int) -> bool:
        return self.peak <= self.limit <= memory and self.batch_size not in self.unlucky

    compiled = False

    def sketch(self, size: int) -> Any:
        return self.at(size)

    def at(self, size: int) -> Any:
        self.replayed += 1
        return replace(self, batch_size=size)

    @property
    def peak(self) -> int:
        return self.fixed + self.each * self.batch_size


def _line(fixed: int, each: int, **more: Any) -> Any:
    return Line(fixed, each, **more)


# Predicted to save 50 of 80 at a batch of 8.
SEGMENTS = Segments(8, (), (), Size(80), Size(30), 0.2)


def _steps() -> RecordedSteps:
    return RecordedSteps(_line(100, 10), 10**6, GRADIENTS, INPUTS)


def test_sizes_between_powers_of_two_are_not_replayed_but_taken_from_the_line_between_them() -> None:
    line = _line(100, 10)
    step = RecordedStep(line, 10**6, 8)
    assert [step.peak(size) for size in (8, 9, 12, 15, 16)] == [180, 190, 220, 250, 260]
    assert line.replayed == 2  # 8 and 16


def test_a_batch_that_may_fit_or_not_is_replayed_under_the_limit_itself() -> None:
    line = _line(100, 10, margin=0.5, limit=230)
    step = RecordedStep(line, 300, 8)
    assert step.need(8) == 270  # 180, and half of it for gaps
    assert step.need(12) == 300  # 330 by its margin, but it fits into 300
    assert step.need(16) == 390  # it does not
    assert step.need(32) == 630


def test_a_batch_that_fits_where_those_beside_it_do_not_is_taken_not_to() -> None:
    step = RecordedStep(_line(0, 10, margin=0.5, limit=900, unlucky=range(70, 79)), 1000, 8)
    fitting = [size for size in range(60, 100) if step.need(size) <= 1000]
    assert fitting == list(range(60, 67))  # up to there the margin is enough, whatever the gaps


def test_what_was_not_recorded_follows_from_what_was() -> None:
    steps = _steps()
    assert steps.need(Way(), 16) == 260
    assert steps.need(Way(SEGMENTS), 16) == 260 - 100
    assert steps.need(Way(SEGMENTS, True), 16) == 260 - 100 + GRADIENTS


@pytest.mark.parametrize(("each", "realised"), [(8, 0.32), (5, 0.8), (2, 1.28)])
def test_other_segments_are_taken_to_save_the_part_that_a_recording_found_to_be_real(
    each: int, realised: float
) -> None:
    """More than was predicted, too: the recording knows of temporaries, the prediction does not."""
    steps = _steps()
    steps.add(Way(SEGMENTS), _line(100, each), 8)
    assert steps.need(Way(SEGMENTS), 8) == 100 + 8 * each
    other = replace(SEGMENTS, activation_bytes=Size(55))  # 25 at a batch of 8
    assert steps.need(Way(other), 16) == 260 - int(realised * 50)


def test_a_step_in_parts_is_recorded_with_two_of_them_of_which_one_waits() -> None:
    steps = _steps()
    steps.add(Way(None, True), _line(150, 6), 8)
    assert steps.need(Way(None, True), 8) == 150 + 6 * 16 - INPUTS * 8


@pytest.mark.parametrize("bound", [0, 1, 2, 3, 37, 1000, LARGEST, 10**6])
def test_the_largest_batch_is_found_to_within_two_per_cent(bound: int) -> None:
    asked: list[int] = []

    def fits(size: int) -> bool:
        asked.append(size)
        return size <= bound

    found = largest_batch(fits)
    assert min(bound, LARGEST) * 63 / 64 - 1 <= found <= bound
    assert len(asked) < 25
    assert largest_batch(fits, at_most=5) == min(bound, 5)


def test_the_largest_batch_may_lie_beyond_some_that_do_not_fit() -> None:
    assert largest_batch(lambda size: size <= 60 or 70 <= size <= 80) == 78
    assert largest_batch(lambda size: size <= 60 or 70 <= size <= 80, at_most=65) == 60
