"""What of a recorded script is replayed at a batch size."""

import pickle
from dataclasses import replace

import pytest

from memfit.estimation.estimate import Estimate
from memfit.estimation.replay.events import death_of
from memfit.estimation.replay.played import Played
from memfit.estimation.replay.recorded import RecordedSource
from memfit.estimation.replay.replay import Replay
from memfit.estimation.replay.script import Allocation, Script

MIB = 2**20


def _script(steps: list[list[tuple[float, float]]]) -> Script:
    """Steps whose allocations, given as constant bytes and bytes per sample, are all born before any dies."""
    allocations: list[Allocation] = []
    order: list[int] = []
    ends = [0]
    for step in steps:
        born = range(len(allocations), len(allocations) + len(step))
        allocations += [Allocation("op", "", "activations", "", (*bytes_, 0)) for bytes_ in step]
        order += [*born, *map(death_of, born)]
        ends.append(len(order))
    return Script(
        allocations=tuple(allocations), order=tuple(order), ends=tuple(ends), threads=(0,) * len(order)
    )


def test_a_step_is_replayed_whole_because_small_buffers_break_gaps():
    script = _script([[(0, MIB), (256, 0), (256, 0)]] * 6)
    played = Played(script, 8)
    assert played.step(1).codes == [3, 4, 5, *map(death_of, (3, 4, 5))]


def test_a_buffer_that_outlives_its_step_dies_in_a_later_one():
    script = _script([[(0, MIB), (256, 0)]] * 2)
    second = script.order[4:]
    order = (0, 1, death_of(0), *second, death_of(1))
    outliving = Script(allocations=script.allocations, order=order, ends=(0, 3, 8), threads=(0,) * 8)
    played = Played(outliving, 8)
    assert played.step(0).codes == [0, 1, death_of(0)]
    assert played.step(0).outliving == [1]
    replay = Replay(played)
    replay.step(0)
    assert replay.allocator.in_use == 256
    replay.step(1)
    assert replay.allocator.in_use == 0


@pytest.mark.parametrize(("batch", "highest"), [(1, 6), (100, 1)])
def test_the_runs_hold_the_steps_that_ask_for_most_at_the_batch_in_question(batch, highest):
    # The later a step, the more it asks for whatever the batch is, and the less for each sample.
    script = _script([[(number * 10 * MIB, (7 - number) * MIB)] for number in range(1, 8)])
    runs = Played(script, batch).runs(most=3)
    assert [run[0] for run in runs] == [0, 0, 0]
    assert all(len(run) == 5 for run in runs)
    later = [step for run in runs for step in run[1:]]
    assert set(later) == {1, 2, 3, 4, 5, 6}
    (one,) = Played(script, batch).runs(most=1)
    assert len(one) == 5
    assert highest in one


def test_an_update_frees_the_buffer_of_the_variable_it_moves_whatever_steps_are_replayed():
    # Two variables of a size lie at either end of a gap; each step moves the first one and frees its old buffer.
    size = (MIB, 0, 0)
    allocations = tuple(Allocation("op", "", "weights", "", size) for _ in range(4))
    script = Script(
        allocations=allocations,
        variables=2,
        prepared=2,
        order=(2, death_of(0), 3, death_of(2)),
        ends=(0, 2, 4),
        threads=(0,) * 4,
        holds=(2, 1, 2, 2),
    )
    replay = Replay(Played(script, 1))
    second = replay.kept[MIB][1]
    replay.step(0)
    moved = replay.kept[MIB][2]
    for _ in range(3):  # the second recorded step, again and again
        replay.step(1)
        assert replay.kept[MIB][1] is second
        assert replay.kept[MIB][2] is not moved
        moved = replay.kept[MIB][2]


def test_each_run_begins_with_one_of_the_first_steps():
    script = replace(_script([[(0, MIB)]] * 8), first_steps=2)
    runs = Played(script, 1).runs(most=4)
    assert {run[0] for run in runs} == {0, 1}
    assert {step for run in runs for step in run[1:]} == {2, 3, 4, 5, 6, 7}


def test_a_run_of_many_thousand_ops_has_fewer_steps():
    def later(ops: int) -> int:
        ((_, *steps),) = Played(_script([[(256, 0)] * ops] * 7), 8).runs()
        return len(steps)

    assert later(3_500) == 4
    assert later(10_000) == 2


def test_the_margin_is_larger_where_orders_of_ops_differ():
    def margin(heights: list[int]) -> float:
        script = _script([[(height * MIB, 0)] for height in heights])
        return Estimate(8, "train", RecordedSource(script, "", 0, (2, 4))).margin

    steady, varied = [100] * 16, [100] + [90] * 14 + [140]
    assert 0.05 <= margin(steady) < 0.07
    assert margin(varied) > margin(steady) + 0.03


def test_a_source_that_was_asked_can_be_kept_on_disk():
    source = RecordedSource(_script([[(0, MIB)]] * 6), "", 0, (2, 4))
    needed = source.at(8).needed
    assert pickle.loads(pickle.dumps(source)).at(8).needed == needed
