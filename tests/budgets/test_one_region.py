"""An arena in one piece: TensorFlow's real allocator, and the replay's model of it."""

from dataclasses import replace

import pytest

from memfit.budgets.arena import pieces_left
from memfit.budgets.isolation import isolated
from memfit.estimation.estimate import Estimate
from memfit.estimation.replay.allocator import BFC, OutOfMemory
from memfit.estimation.replay.capped import completes, peak_under
from memfit.estimation.replay.played import Played
from memfit.estimation.replay.recorded import RecordedSource
from memfit.estimation.replay.script import Allocation, Script
from memfit.sizes import Size

MIB = 2**20
# The second needs more than half of the arena, of which the first has made the allocator take a half.
SIZES, ARENA = (10 * MIB, 18 * MIB), 32 * MIB


def estimate_of(script: Script) -> Estimate:
    return Estimate(1, "train", RecordedSource(script, "by hand", 0, (1,)))


def _second_fits(in_one_piece: bool) -> bool:
    import tensorflow as tf
    from memfit.budgets.one_piece import take_in_one_piece

    if in_one_piece:
        take_in_one_piece(Size(ARENA), "CPU:0")
    try:
        for size in SIZES:
            tf.raw_ops.Empty(shape=[size], dtype=tf.uint8, init=False)
    except tf.errors.ResourceExhaustedError:
        return False
    return True


@pytest.mark.parametrize("in_one_piece", [False, True])
def test_a_tensor_that_fits_no_region_fits_one_piece_and_the_replay_knows_it(in_one_piece: bool) -> None:
    assert isolated(_second_fits, in_one_piece, memory=ARENA) == in_one_piece
    allocations = tuple(Allocation("op", "", "activations", "", (size, 0, 0)) for size in SIZES)
    script = Script(allocations=allocations, order=(0, ~0, 1, ~1), ends=(0, 2, 4), threads=(0,) * 4)
    assert completes(Played(replace(script, one_piece=0 if in_one_piece else None), 1), ARENA) == in_one_piece


def test_where_little_is_left_a_chunk_is_handed_out_whole_and_counts_whole() -> None:
    order, size = (0, ~0), 18 * MIB
    step = Allocation("op", "", "activations", "", (size, 0, 0))
    script = Script(allocations=(step,), order=order, ends=(0, 2), threads=(0, 0), one_piece=0)
    played = Played(script, 1)
    assert peak_under(played, 256 * MIB) == size  # the piece is more than twice as large, and is cut
    assert size < peak_under(played, ARENA) <= ARENA
    assert peak_under(played, size) is None


def test_the_optimizer_state_of_a_fresh_model_lies_in_the_piece() -> None:
    # Where the state is there first, the allocator has taken regions of 2 to 16 MiB, and 2 are left of the arena.
    kinds = [("weights", MIB), ("optimizer state", 10 * MIB), ("activations", 16 * MIB)]
    allocations = tuple(Allocation("op", "", kind, "", (size, 0, 0)) for kind, size in kinds)
    script = Script(
        allocations=allocations, variables=2, prepared=2, order=(2, ~2), ends=(0, 2), threads=(0, 0)
    )
    for first, fits in ((True, True), (False, False)):
        est = estimate_of(script).in_one_piece(before_the_optimizer=first)
        assert completes(Played(est.made_from.script, 1), ARENA) == fits


def _peak_after_taking() -> tuple[int, int]:
    import tensorflow as tf
    from memfit.budgets.one_piece import take_in_one_piece

    kept = tf.raw_ops.Empty(shape=[MIB], dtype=tf.uint8, init=False)
    take_in_one_piece(Size("1GiB"), "CPU:0")
    info = tf.config.experimental.get_memory_info("CPU:0")
    del kept
    return info["current"], info["peak"]


def test_nothing_is_left_in_use_or_counted_as_a_peak() -> None:
    current, peak = isolated(_peak_after_taking, memory=ARENA)
    assert MIB <= current <= peak < 2 * MIB


def test_where_the_allocator_took_one_region_more_than_is_usual_a_smaller_piece_is_taken() -> None:
    """Regions of 2, 4, ... 128 MiB for a peak of 102, much as with the weights of ResNet50."""
    allocator = BFC(1024 * MIB)
    for tenths in (9, 19, 39, 79, 159, 319, 400):  # each but the last leaves half of its region free
        allocator.allocate(tenths * MIB // 10)
    assert allocator.reserved == 254 * MIB
    first, second = pieces_left(1024 * MIB, allocator.peak)
    with pytest.raises(OutOfMemory):
        allocator.allocate(first)
    allocator.allocate(second)
    assert second == 768 * MIB
