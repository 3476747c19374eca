"""Recorded steps under a cap, where a thread that finds no room waits for the others."""

import time

import pytest

from memfit.estimation.recording.tracing import inputs_of
from memfit.estimation.replay.capped import completes
from memfit.estimation.replay.dependencies import Dependencies
from memfit.estimation.replay.events import death_of
from memfit.estimation.replay.played import Played
from memfit.estimation.replay.script import Allocation, Script

MIB = 2**20
# The backward pass of two layers: a gradient of the first one's output leads to the next and to a weight's.
CHAIN = {
    "activation": (),
    "gradient_2": ("activation",),
    "weights_2": ("gradient_2",),
    "gradient_1": ("gradient_2",),
    "weights_1": ("gradient_1",),
    "update": ("weights_2", "weights_1"),
}


def _script(events: list[tuple[str, int, int]], inputs: dict[str, tuple[str, ...]]) -> Script:
    """A script of one step from (op, MiB or 0 for its death, thread)."""
    allocations: list[Allocation] = []
    order, numbers = [], {}
    for op, size, _ in events:
        if size:
            numbers[op] = len(allocations)
            order.append(len(allocations))
            allocations.append(Allocation(op, "", "activations", "", (size * MIB, 0, 0)))
        else:
            order.append(death_of(numbers[op]))
    return Script(
        allocations=tuple(allocations),
        order=tuple(order),
        ends=(0, len(order)),
        threads=tuple(thread for _, _, thread in events),
        inputs=inputs,
    )


@pytest.mark.parametrize(("inputs", "fits"), [(CHAIN, True), ({}, False)])
def test_a_weights_gradient_that_finds_no_room_waits_while_the_backward_pass_goes_on(inputs, fits):
    script = _script(
        [
            ("activation", 16, 0),
            ("gradient_2", 4, 0),
            ("weights_2", 14, 1),  # finds 12 MiB in the second region, and waits
            ("weights_2", 0, 1),
            ("gradient_1", 3, 0),
            ("activation", 0, 0),  # frees what the waiting op wants
            ("gradient_2", 0, 0),
            ("gradient_1", 0, 0),
        ],
        inputs,
    )
    assert completes(Played(script, 1), 33 * MIB) == fits
    assert completes(Played(script, 1), 64 * MIB)


def test_what_a_waiting_op_has_yet_to_read_is_not_freed_meanwhile():
    script = _script(
        [
            ("gradient_2", 16, 0),
            ("weights_2", 14, 1),
            ("weights_2", 0, 1),
            ("gradient_2", 0, 0),
        ],
        CHAIN,
    )
    assert not completes(Played(script, 1), 26 * MIB)
    assert completes(Played(script, 1), 64 * MIB)


def test_a_wait_does_not_cost_as_much_as_all_that_is_left_of_the_step():
    rounds = 4000
    # In a loop over time ops have names inside of the loop's, so none is known not to come after another.
    allocations = (Allocation("loop/op", "", "activations", "", (10 * MIB, 0, 0)),) * (2 * rounds)
    order = [code for a in range(0, 2 * rounds, 2) for code in (a, a + 1, death_of(a), death_of(a + 1))]
    script = Script(
        allocations=allocations,
        order=tuple(order),
        ends=(0, len(order)),
        threads=(0, 1, 0, 1) * rounds,  # the second thread waits in every round for what the first one frees
        inputs={"loop": ()},
    )
    played = Played(script, 1)
    seconds = []
    for limit in (16 * MIB, 64 * MIB):
        begin = time.process_time()
        assert completes(played, limit)
        seconds.append(time.process_time() - begin)
    assert seconds[0] < 20 * seconds[1]  # it was 300 times


def _steps(heights: list[int]) -> Script:
    """Steps that ask for one tensor of so many MiB each."""
    allocations = tuple(Allocation("op", "", "activations", "", (height * MIB, 0, 0)) for height in heights)
    order = [code for number in range(len(heights)) for code in (number, death_of(number))]
    ends = range(0, len(order) + 1, 2)
    threads = (0,) * len(order)
    return Script(allocations=allocations, order=tuple(order), ends=tuple(ends), threads=threads)


@pytest.mark.parametrize(("higher", "fits"), [(0, True), (1, False), (8, False)])
def test_every_run_has_to_complete(higher, fits):
    script = _steps([10] * (33 - higher) + [30] * higher)
    assert completes(Played(script, 1), 20 * MIB) == fits
    assert completes(Played(script, 1), 100 * MIB)


def test_an_op_waits_for_its_inputs_and_for_what_those_wait_for():
    ops = list(CHAIN)
    known = Dependencies(CHAIN, ops)
    bit = dict(zip(ops, known.bits, strict=True))
    after = dict(zip(ops, known.after, strict=True))
    assert after["gradient_1"] == bit["gradient_1"] | bit["weights_1"] | bit["update"]
    assert after["weights_2"] == bit["weights_2"] | bit["update"]
    readers = dict(zip(ops, known.readers, strict=True))
    assert readers["gradient_2"] == bit["weights_2"] | bit["gradient_1"]


def test_ops_that_ask_for_no_memory_hand_on_what_they_read():
    inputs = {"a": (), "reshape": ("a",), "b": ("reshape",), "c": ("b",)}
    known = Dependencies(inputs, ["a", "b", "c", "b/inner", "never seen"])
    assert known.readers[0] & known.bits[1]
    assert not known.readers[0] & known.bits[2]
    assert known.bits[3] == known.bits[1]
    assert known.bits[4] == 0


def test_a_traced_step_says_what_its_ops_wait_for():
    import tensorflow as tf

    @tf.function
    def step(x):
        y = tf.square(x, name="first")
        with tf.control_dependencies([y]):
            return tf.add(x, x, name="second")

    assert inputs_of(step.get_concrete_function(tf.constant(1.0)))["second"] == ("x", "first")
