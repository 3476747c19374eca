"""Who may run beside whom: decided from figures alone."""

import threading
import time
from collections.abc import Callable

from memfit.searching.room import Room


def _in_thread(call: Callable[[], object]) -> "tuple[threading.Thread, list[object]]":
    told: list[object] = []
    thread = threading.Thread(target=lambda: told.append(call()), daemon=True)
    thread.start()
    return thread, told


def _waits(thread: threading.Thread) -> bool:
    thread.join(0.2)
    return thread.is_alive()


def test_trials_with_predictions_run_side_by_side_as_far_as_these_fit() -> None:
    room = Room(100, 8)
    assert room.enter(0)
    second, _ = _in_thread(lambda: room.enter(1))
    assert _waits(second), "nothing is known of the first yet"
    assert room.ask(0, need=40, holds=1)
    second.join(10)
    assert room.ask(1, need=50, holds=1)
    assert room.enter(2)
    third, told = _in_thread(lambda: room.ask(2, need=40, holds=1))
    assert _waits(third)
    assert room.count == (2, 1)
    fourth, _ = _in_thread(lambda: room.enter(3))
    assert _waits(fourth), "behind one that waits for memory"
    assert room.leave(0, peak=30) == (40, "predicted")
    third.join(10)
    assert told == [True]
    assert room.most_reserved == 90
    room.stop()


def test_a_trial_that_needs_more_than_there_is_runs_by_itself() -> None:
    room = Room(100, 8)
    room.enter(0)
    room.ask(0, need=40, holds=0)
    room.enter(1)
    large, told = _in_thread(lambda: room.ask(1, need=1000, holds=0))
    assert _waits(large)
    room.leave(0, peak=40)
    large.join(10)
    assert told == [True]


def test_what_cannot_be_predicted_runs_by_itself_until_one_of_it_was_measured() -> None:
    room = Room(100, 8)
    room.enter(0)
    second, _ = _in_thread(lambda: room.enter(1))
    assert _waits(second)
    assert room.leave(0, peak=30) == (None, "")
    second.join(10)
    assert room.enter(2)
    third, _ = _in_thread(lambda: room.enter(3))
    assert _waits(third), "three times 36 is more than 100"
    assert room.leave(1, peak=30) == (36, "measured")
    third.join(10)
    assert room.most_inside == 2


def test_two_that_wait_for_more_than_is_left_run_one_after_the_other() -> None:
    room = Room(100, 8)
    room.enter(0)
    room.leave(0, peak=30)
    room.enter(1)
    room.enter(2)
    first, _ = _in_thread(lambda: room.ask(1, need=90, holds=20))
    assert _waits(first), "the other may still turn out small"
    second, _ = _in_thread(lambda: room.ask(2, need=90, holds=20))
    first.join(10)
    assert not first.is_alive()
    assert _waits(second)
    room.leave(1, peak=90)
    second.join(10)
    assert not second.is_alive()


def test_one_that_had_company_begins_again_when_no_other_runs() -> None:
    room = Room(100, 8)
    for number in range(2):
        room.enter(number)
        assert not room.had_company(0) or number
        room.ask(number, need=10, holds=0)
    assert room.had_company(0)
    again, told = _in_thread(lambda: room.begin_again_alone(0))
    assert _waits(again)
    room.leave(1, peak=10)
    again.join(10)
    assert told == [True]
    other, _ = _in_thread(lambda: room.enter(2))
    assert _waits(other), "none begins beside it"
    room.stop()


def test_with_one_at_a_time_nothing_is_reserved() -> None:
    room = Room(100, 1)
    for number in range(3):
        assert room.enter(number)
        other, _ = _in_thread(lambda number=number: room.enter(number + 10))
        if number == 2:
            assert _waits(other)
            room.stop()
            other.join(10)
            break
        assert room.leave(number, peak=30) == (None, "")
        other.join(10)
        room.leave(number + 10, peak=30)


def test_nobody_waits_when_it_is_stopped() -> None:
    room = Room(100, 2)
    room.enter(0)
    thread, told = _in_thread(lambda: room.enter(1))
    time.sleep(0.1)
    room.stop()
    thread.join(10)
    assert told == [False]
