"""The smallest cap is one figure, however it is asked about."""

from hypothesis import given
from hypothesis import strategies as st

from memfit.estimation.replay.recorded import SmallestCap

LEAST = 40
caps = st.integers(LEAST - 5, 400)


@given(st.sets(st.integers(LEAST, 250)), st.lists(caps, max_size=6))
def test_the_same_question_has_the_same_answer_though_a_larger_cap_may_fail_where_a_smaller_one_does(
    failing: set[int], asked: list[int]
) -> None:
    tried: list[int] = []

    def completes(cap: int) -> bool:
        tried.append(cap)
        return cap not in failing

    whole = SmallestCap(completes, LEAST)
    smallest = whole.find()
    assert smallest not in failing
    assert smallest >= LEAST
    tried.clear()
    lazy = SmallestCap(completes, LEAST)
    assert [lazy.is_at_most(cap) for cap in asked] == [cap >= smallest for cap in asked]
    assert len(tried) == len(set(tried))
    assert lazy.find() == smallest


def test_a_question_that_is_settled_by_the_least_cap_tries_none() -> None:
    def completes(cap: int) -> bool:
        raise AssertionError(cap)

    assert not SmallestCap(completes, LEAST).is_at_most(LEAST - 1)
