import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit import InvalidInput, Size


def test_binary_and_decimal_units_differ() -> None:
    assert Size("8GiB") == 8 * 2**30
    assert Size("8GB") == 8 * 10**9
    assert Size("512MiB") == 512 * 2**20
    assert Size(" 1.5 gib ") == 3 * 2**29


def test_an_int_is_bytes() -> None:
    assert Size(1234) == 1234
    assert Size("1234") == 1234


def test_a_percentage_is_a_part_of_what_is_there() -> None:
    assert Size("80%", of=1000) == 800


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1536, "1.5 KiB"), (3 * 2**19, "1.5 MiB"), (512 * 2**20, "512 MiB"), (2**33, "8.00 GiB")],
)
def test_it_prints_in_the_unit_a_person_would_use(size: int, text: str) -> None:
    assert str(Size(size)) == text
    assert f"{Size(size):>10}" == text.rjust(10)


@given(st.integers(min_value=1, max_value=2**42))
def test_advice_is_enough_when_it_is_typed_in_as_it_reads(needed: int) -> None:
    advised = Size(needed).as_advised()
    assert needed <= Size(str(advised)) == advised
    assert advised < needed * 1.02 + 2**21


@pytest.mark.parametrize(
    "wrong", ["", "GiB", "8 gigs", "-1GiB", "8GiB GiB", "1.5", "0%", "101%", -1, 1.5, None, True, "1e9"]
)
def test_what_is_no_size_is_refused_with_the_value_and_a_remedy(wrong: object) -> None:
    with pytest.raises(InvalidInput, match="Received: ") as caught:
        Size(wrong, of=100)  # type: ignore[arg-type]
    assert isinstance(caught.value, ValueError)


def test_a_percentage_of_nothing_known_is_refused() -> None:
    with pytest.raises(InvalidInput, match="known total"):
        Size("80%")


@given(st.integers(min_value=0, max_value=2**50))
def test_every_number_of_bytes_survives_being_written_as_text(number: int) -> None:
    assert Size(f"{number}B") == number
