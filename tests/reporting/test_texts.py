"""The texts that commands show."""

import pytest

from memfit.reporting.caches import describe_age
from memfit.reporting.estimates import write_size
from memfit.sizes import Size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "just now"),
        (119, "just now"),
        (600, "10 minutes ago"),
        (3 * 3600, "3 hours ago"),
        (9e5, "10 days ago"),
    ],
)
def test_an_age_is_told_in_its_largest_unit(seconds: float, text: str) -> None:
    assert describe_age(seconds) == text


@pytest.mark.parametrize("text", ["8GiB", "300MiB", "1GiB", "1025MiB"])
def test_a_size_is_written_as_it_is_read(text: str) -> None:
    assert write_size(Size(text)) == text
