"""Bytes as a function of the batch."""

import pytest

from memfit.estimation.recording import Session
from memfit.estimation.sizes import sizes_by_asker
from memfit.estimation.trace import Event


def _session(batch: int, size: int, shape: str = "") -> Session:
    return Session(batch, ((Event(0, size, size, "op", "output", shape, freed=False),),), (0,))


def _at(batch: int, *sessions: Session, fixed: frozenset[str] = frozenset()) -> float:
    (polynomial,) = sizes_by_asker(sessions, fixed).values()
    return polynomial[0] + batch * polynomial[1] + batch**2 * polynomial[2]


def test_an_activation_grows_with_the_batch():
    assert _at(64, *(_session(batch, 100 + 40 * batch) for batch in (2, 4, 8))) == pytest.approx(
        100 + 40 * 64
    )


def test_a_similarity_matrix_grows_with_the_square_of_the_batch():
    assert _at(64, *(_session(batch, 4 * batch**2) for batch in (2, 4, 8))) == pytest.approx(4 * 64**2)


def test_a_buffer_that_reached_its_full_size_grows_no_more():
    assert _at(64, _session(2, 200), _session(4, 400), _session(8, 400)) == 400


def test_what_was_seen_at_one_batch_only_goes_by_its_shape():
    assert _at(64, _session(8, 800, "[8,25]")) == 6400
    assert _at(64, _session(8, 800, "[3,25]")) == 800


def test_a_weight_whose_shape_begins_with_the_batch_by_chance_stays_as_it_is():
    assert _at(64, _session(8, 800, "[8,25]"), fixed=frozenset({"[8,25]"})) == 800
