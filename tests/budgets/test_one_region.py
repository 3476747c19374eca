"""An arena as one region: TensorFlow's real allocator, and the replay's model of it."""

from dataclasses import replace

import pytest

from memfit.budgets.arena import pieces_left
from memfit.estimation.replay.allocator import BFC, OutOfMemory
from memfit.estimation.replay.capped import completes, peak_under
from memfit.estimation.replay.played import Played
from memfit.estimation.replay.script import Allocation, Script
from prepared import in_arena

MIB = 2**20
# The second needs more than half of the arena, of which the first has made the allocator take a half.
SIZES, ARENA = (10 * MIB, 18 * MIB), 32 * MIB


def _second_fits(in_one_region: bool) -> bool:
    import tensorflow as tf

    from memfit.budgets.peaks import take_one_region

    if in_one_region:
        take_one_region()
    try:
        for size in SIZES:
            tf.raw_ops.Empty(shape=[size], dtype=tf.uint8, init=False)
    except tf.errors.ResourceExhaustedError:
        return False
    return True


@pytest.mark.parametrize("in_one_region", [False, True])
def test_a_tensor_that_fits_none_of_several_regions_fits_one_and_the_replay_knows_it(
    in_one_region: bool,
) -> None:
    assert in_arena(_second_fits, in_one_region, memory=ARENA) == in_one_region
    allocations = tuple(Allocation("op", "", "activations", "", (size, 0, 0)) for size in SIZES)
    script = Script(allocations=allocations, order=(0, ~0, 1, ~1), ends=(0, 2, 4), threads=(0,) * 4)
    assert (
        completes(Played(replace(script, region_at=0 if in_one_region else None), 1), ARENA) == in_one_region
    )


def test_where_little_is_left_a_chunk_is_handed_out_whole_and_counts_whole() -> None:
    order, size = (0, ~0), 18 * MIB
    step = Allocation("op", "", "activations", "", (size, 0, 0))
    script = Script(allocations=(step,), order=order, ends=(0, 2), threads=(0, 0), region_at=0)
    played = Played(script, 1)
    assert peak_under(played, 256 * MIB) == size  # the piece is more than twice as large, and is cut
    assert size < peak_under(played, ARENA) <= ARENA
    assert peak_under(played, size) is None


def _peak_after_taking() -> tuple[int, int]:
    import tensorflow as tf

    from memfit.budgets.peaks import take_one_region

    kept = tf.raw_ops.Empty(shape=[MIB], dtype=tf.uint8, init=False)
    take_one_region()
    info = tf.config.experimental.get_memory_info("CPU:0")
    del kept
    return info["current"], info["peak"]


def test_nothing_is_left_in_use_or_counted_as_a_peak() -> None:
    current, peak = in_arena(_peak_after_taking, memory=ARENA)
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
