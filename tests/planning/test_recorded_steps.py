"""What follows from recordings, with estimates that can be worked out by hand."""

from dataclasses import replace
from typing import Any

import pytest

from memfit import Size
from memfit.planning.build_plan import build_plan
from memfit.planning.recorded_step import RecordedStep
from memfit.planning.search import LARGEST, find_largest_batch
from memfit.steps.recipe import Recipe
from planning.figures import Line, job_of, network, recordings_of, segments

GRADIENTS = 4  # of network()'s one weight
SEGMENTS = segments(240, 0.2)  # predicted to save 400 of 640 at a batch of 64: 100 at 16


def _line(fixed: int, each: float, **more: Any) -> Any:
    return Line(fixed, each, **more)


def _recordings(lines: dict[Recipe, Any] | None = None) -> Any:
    job = job_of(network(normalised=False), 10**6, batch_size=8, choices=(SEGMENTS,))
    return recordings_of(job, {Recipe(): _line(100, 10), **(lines or {})})


def _waiting(batch_size: int) -> int:
    return 5 * batch_size


def test_sizes_between_powers_of_two_are_taken_from_the_line_between_them() -> None:
    step = RecordedStep(_line(100, 10), 8)
    assert [step.peak(size) for size in (8, 9, 12, 15, 16)] == [180, 190, 220, 250, 260]


def test_a_batch_that_may_fit_or_not_is_replayed_under_the_limit_itself() -> None:
    step = RecordedStep(_line(100, 10, margin=0.5, limit=230), 8)
    assert step.need(8, 300) == 270  # 180, and half of it for gaps
    assert step.need(12, 300) == 300  # 330 by its margin, but it fits into 300
    assert step.need(16, 300) == 390  # it does not
    assert step.need(32, 300) == 630
    assert step.need(12, 250) == 250  # what fits into one memory
    assert step.need(12, 225) == 330  # says nothing of another


def test_what_gaps_fill_is_replayed_once_and_not_where_the_peak_itself_has_no_room(monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(Line, "peak_in", lambda self, memory: asked.append(memory) or self.peak + 7)
    step = RecordedStep(_line(100, 10), 8)
    assert [step.filled(8, memory) for memory in (-1, 100, 180, 300, 300)] == [0, 0, 0, 7, 7]
    assert asked == [300]


def test_a_step_has_the_memory_that_what_waits_beside_it_leaves() -> None:
    stock = {Recipe(): _line(100, 10, margin=0.5, limit=230)}
    job = job_of(network(normalised=False), 290 + _waiting(12), batch_size=12)
    assert recordings_of(job, stock).need(Recipe(), 12) == 290 + _waiting(12)
    job = job_of(network(normalised=False), 225 + _waiting(12), batch_size=12)  # 285 in all: above the 230
    assert recordings_of(job, stock).need(Recipe(), 12) == 330 + _waiting(12)


def test_what_was_not_recorded_follows_from_what_was() -> None:
    recordings = _recordings()
    assert recordings.need(Recipe(), 16) == 260 + _waiting(16)
    assert recordings.need(Recipe(segments=SEGMENTS), 16) == 260 - 100 + _waiting(16)
    # In parts of 16, a batch of 32: the other 16 wait.
    in_parts = 260 + GRADIENTS + 16 + _waiting(32)
    assert recordings.need(Recipe(16), 32) == in_parts
    assert recordings.need(Recipe(16, SEGMENTS), 32) == in_parts - 100
    assert recordings.need(Recipe(16, inputs_on_host=True), 32) == 260 + GRADIENTS


@pytest.mark.parametrize(("each", "saved"), [(8, 0), (5, 30), (2, 78)])
def test_other_segments_are_taken_to_miss_their_prediction_by_what_the_recorded_ones_did(
    each: int, saved: int
) -> None:
    """More than was predicted, too: the recording knows of temporaries, the prediction does not."""
    recordings = _recordings({Recipe(segments=SEGMENTS): _line(100, each)})
    recordings.record(Recipe(segments=SEGMENTS), 8)
    assert recordings.need(Recipe(segments=SEGMENTS), 8) == 100 + 8 * each + _waiting(8)
    other = replace(SEGMENTS, activation_bytes=Size(440))  # 200 at a batch of 64, 50 at 16
    assert recordings.need(Recipe(segments=other), 16) == 260 - saved + _waiting(16)


def test_a_recording_that_shows_no_saving_does_not_keep_tighter_segments_from_being_recorded() -> None:
    recordings = _recordings({Recipe(segments=SEGMENTS): _line(100, 10)})
    recordings.record(Recipe(segments=SEGMENTS), 8)
    tighter = replace(
        SEGMENTS, activation_bytes=Size(40)
    )  # 600 at a batch of 64, 75 at 8, of which 50 were missed
    assert recordings.need(Recipe(segments=tighter), 8) == 180 - 25 + _waiting(8)


def test_what_micro_batches_leave_for_the_update_is_counted_for_the_whole_batch() -> None:
    """As rows of an embedding's gradient: a step is recorded with two micro-batches, however many there will be."""
    parts = Recipe(4, inputs_on_host=True)
    recordings = _recordings({Recipe(2): _line(150, 6, left_by_parts=3)})
    recordings.record(parts, 8)
    assert recordings.need(parts, 8) == 150 + 8 * 6 + 8 * 3
    assert recordings.need(parts, 64) == 150 + 8 * 6 + 64 * 3
    recordings.look_at(parts, 64)
    assert recordings.need(parts, 64) == 150 + 8 * 6 + 64 * 3


def test_a_recording_of_a_far_batch_is_not_taken_for_one_of_the_batch_in_question() -> None:
    recordings = _recordings({Recipe(2): _line(150, 6)})
    recordings.record(Recipe(1), 64)  # two parts of one sample
    assert recordings.candidate(Recipe(2), 64).recorded
    far = recordings.candidate(Recipe(16), 64)
    assert (far.recorded, far.bounded) == (False, False)
    assert far.need == 150 + 6 * 32 + 32 + _waiting(64)  # what is known until it is recorded
    recordings.record(Recipe(16), 64)
    near, smaller = (recordings.candidate(Recipe(size), 64) for size in (22, 4))
    assert (near.recorded, near.bounded) == (True, True)
    assert (smaller.recorded, smaller.bounded) == (False, True)


def test_a_step_in_parts_is_recorded_with_two_of_them_of_which_one_waits() -> None:
    recordings = _recordings({Recipe(2): _line(150, 6)})
    recordings.record(Recipe(8), 32)
    assert recordings.need(Recipe(8, inputs_on_host=True), 32) == 150 + 6 * 16 - 8


def test_what_a_lever_saves_is_the_difference_of_the_peaks_whatever_margins_they_have() -> None:
    ours = Recipe(segments=SEGMENTS)
    job = job_of(network(normalised=False), 300, batch_size=8, choices=(SEGMENTS,))
    recordings = recordings_of(job, {Recipe(): _line(1000, 10, margin=0.5), ours: _line(100, 5, margin=0.1)})
    recordings.record(ours, 8)
    assert recordings.saving(ours, Recipe(), 8) == 1080 - 140
    plan = build_plan(recordings, 8, recordings.candidate(ours, 8))
    assert next(row.saving for row in plan.levers if row.used) == plan.stock - plan.predicted == 1080 - 140


@pytest.mark.parametrize("bound", [0, 1, 2, 3, 37, 1000, LARGEST, 10**6])
def test_the_largest_batch_is_found_to_within_two_per_cent(bound: int) -> None:
    asked: list[int] = []

    def fits(size: int) -> bool:
        asked.append(size)
        return size <= bound

    largest = find_largest_batch(fits)
    assert min(bound, LARGEST) * 63 / 64 - 1 <= largest <= bound
    assert len(asked) < 25
    assert find_largest_batch(fits, at_most=5) == min(bound, 5)
