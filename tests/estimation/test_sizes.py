"""Bytes as a function of the batch."""

import pytest

from memfit.estimation.recording.recording import Step
from memfit.estimation.recording.trace import Event
from memfit.estimation.replay.sizes import askers, size_of, sizes_by_asker


def _step(batch: int, size: int, shape: str = "") -> Step:
    return Step(batch, (Event(0, size, size, "op", "output", shape, freed=False),))


def _at(batch: int, *steps: Step, fixed: frozenset[str] = frozenset()) -> float:
    (polynomial,) = sizes_by_asker(steps, fixed).values()
    return polynomial[0] + batch * polynomial[1] + batch**2 * polynomial[2]


def test_an_activation_grows_with_the_batch():
    assert _at(64, *(_step(batch, 100 + 40 * batch) for batch in (2, 4, 8))) == pytest.approx(100 + 40 * 64)


def test_a_similarity_matrix_grows_with_the_square_of_the_batch():
    assert _at(64, *(_step(batch, 4 * batch**2) for batch in (2, 4, 8))) == pytest.approx(4 * 64**2)


def test_a_buffer_that_reached_its_full_size_grows_no_more():
    assert _at(64, _step(2, 200), _step(4, 400), _step(8, 400)) == 400


def test_what_was_seen_at_one_batch_only_goes_by_its_shape():
    assert _at(64, _step(8, 800, "[8,25]")) == 6400
    assert _at(64, _step(8, 800, "[3,25]")) == 800


def test_a_weight_whose_shape_begins_with_the_batch_by_chance_stays_as_it_is():
    assert _at(64, _step(8, 800, "[8,25]"), fixed=frozenset({"[8,25]"})) == 800


def test_an_event_that_is_not_what_its_asker_asks_for_in_other_steps_keeps_its_own_bytes():
    steps = (_step(2, 200), _step(4, 400), _step(4, 400), _step(4, 999))
    sizes = sizes_by_asker(steps, frozenset())
    ((odd, asker),) = askers(steps[-1].events, 4)
    ((usual, _),) = askers(steps[1].events, 4)
    assert size_of(odd, asker, 4, sizes, frozenset()) == (999, 0, 0)
    assert size_of(usual, asker, 4, sizes, frozenset()) == (0, 100, 0)
