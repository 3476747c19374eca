"""What building a step allocates before its first run, replayed against the real allocator."""

from collections import defaultdict
from typing import Any

import pytest

from memfit.estimation.recording.recording import Recording, Step, Variable
from memfit.estimation.recording.trace import Event
from memfit.estimation.replay.allocator import ADDRESS, BEFORE, OWNER, Chunk
from memfit.estimation.replay.capped import completes
from memfit.estimation.replay.played import Played
from memfit.estimation.replay.replay import Replay
from memfit.estimation.replay.script_builder import build_script
from prepared import in_arena

MIB = 2**20
ARENA = 128 * MIB
SIZES = (20 * MIB, 700, MIB, 5000, 2 * MIB)
GAPS = (1, 3)  # which of them are freed again
SMALL, LARGE = 600, 92 * MIB


def _set_up_and_run(one_region: bool) -> tuple[tuple[Event, ...], tuple[Event, ...], bool]:
    """Allocates, frees some, and asks for a large tensor; returns the events, and whether that fitted."""
    import tensorflow as tf

    from memfit.budgets.arena import pieces_left
    from memfit.budgets.peaks import take_peak
    from memfit.estimation.recording.trace import mark, traced

    @tf.function(autograph=False)
    def take(shape: Any) -> Any:
        return tf.raw_ops.Empty(shape=shape, dtype=tf.uint8, init=False, name="memfit_one_region")

    def allocate(size: int) -> Any:
        return tf.raw_ops.Empty(shape=[size], dtype=tf.uint8, init=False)

    fits = True
    with traced() as seen:
        first = allocate(6 * MIB)
        if one_region:
            left, *_ = pieces_left(ARENA, take_peak("CPU:0"))
            take(tf.constant([left // MIB, MIB]))
        kept = [allocate(size) for size in SIZES]
        for position in GAPS:
            kept[position] = None
        mark()
        small = allocate(SMALL)
        try:
            allocate(LARGE)
        except tf.errors.ResourceExhaustedError:
            fits = False
        mark()
    del first, small
    setup, step = seen[:2]
    return setup, step, fits


def _region(chunk: Chunk) -> int:
    """The address at which a modelled chunk's region begins."""
    while chunk[BEFORE] is not None:
        chunk = chunk[BEFORE]
    return int(chunk[ADDRESS])


def _recording(setup: tuple[Event, ...], step: tuple[Event, ...], *variables: Variable) -> Recording:
    return Recording(
        phase="train",
        variables=variables,
        folded=(),
        starts=((),),
        others=(),
        steps=(Step(2, step),),
        compiled=(),
        layers=(),
        shapes=frozenset(),
        inputs={},
        setup=setup,
    )


@pytest.mark.parametrize("one_region", [True, False])
def test_what_a_step_sets_up_lies_where_the_real_allocator_has_it(one_region: bool) -> None:
    setup, step, fits = in_arena(_set_up_and_run, one_region, memory=ARENA)
    assert fits == one_region  # regions of 2 to 32 MiB have no room for it
    step = (*step, Event(1, LARGE, LARGE, "", "", "", freed=False), Event(1, LARGE, LARGE, "", "", "", True))
    small = tuple(event for event in step if event.requested != LARGE)
    script = build_script(_recording(setup, step))
    assert (script.region_at is not None) == one_region
    assert completes(Played(script, 2), ARENA) == fits
    replay = Replay(Played(build_script(_recording(setup, small)), 2), ARENA)
    replay.step(0)
    chunks = [chunk for kept in replay.kept.values() for chunk in kept.values()]
    real = {event.requested: event.address for event in (*setup, *step) if not event.freed}
    begins: dict[int, set[int]] = defaultdict(set)  # of the real regions, by the modelled ones
    for chunk in chunks:
        size = replay.played.asked[chunk[OWNER]]
        if size in (*SIZES, SMALL):
            begins[_region(chunk)].add(real[size] - (chunk[ADDRESS] - _region(chunk)))
    assert len(begins) >= 2
    assert all(len(real_begins) == 1 for real_begins in begins.values())


def _event(address: int, size: int, *, freed: bool = False, op: str = "op") -> Event:
    return Event(address, size, size, op, "", "", freed)


def test_a_step_replaces_a_variable_that_its_setup_made_whatever_its_address_is_by_then():
    setup = (_event(1, 4 * MIB), _event(2, MIB), _event(1, 4 * MIB, freed=True))
    step = (_event(7, MIB, op="update"), _event(9, MIB, freed=True))
    buffer = Variable("gradient", "gradients", MIB, False, event=1)
    script = build_script(_recording(setup, step, buffer))
    assert script.variables == 0  # none of them is Keras's own
    replay = Replay(Played(script, 2))
    assert replay.allocator.in_use == MIB
    replay.step(0)
    assert replay.allocator.in_use == MIB
    (allocation,) = {script.allocations[number].op for number, _ in replay.living()}
    assert allocation == "update"


def test_a_buffer_for_gradients_that_was_empty_at_first_is_there_after_the_setup():
    script = build_script(
        _recording((_event(1, 256),), (), Variable("gradient", "gradients", MIB // 2, False))
    )
    assert script.variables == 0
    assert Replay(Played(script, 2)).allocator.in_use == MIB // 2 + 256
