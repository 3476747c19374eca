"""Sizes of memory: "8GiB", "8GB", "512MiB", "80%", or a number of bytes."""

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Self

from memfit.errors import InvalidInput

# GB is a thousand MB and GiB is 1024 MiB; nvidia-smi and TensorFlow count in MiB, vendors' boxes in GB.
_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", 1):
    _UNITS |= {f"{_letter}b": 1000**_power, f"{_letter}ib": 1024**_power}
_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*|%)\s*", re.IGNORECASE)
_FORMS = 'Write a number with a unit, such as "8GiB", "8GB", "512MiB" or "80%", or a number of bytes'


class Size(int):
    """A number of bytes that prints as GiB or MiB.

    Example:
        >>> Size("1.5GiB")
        Size('1.50 GiB')
        >>> Size("8GB") < Size("8GiB")
        True
        >>> Size("80%", of=Size("10GiB"))
        Size('8.00 GiB')
    """

    def __new__(cls, value: "int | str", *, of: int | None = None) -> Self:
        """Reads a size.

        Args:
            value: A number of bytes, or text such as "8GiB", "8GB", "512MiB", "80%".
            of: What a percentage is a part of.

        Raises:
            InvalidInput: If the value is no size, is negative, or is a percentage of nothing known.
        """
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise InvalidInput(
                "A memory size must be a number of bytes or a string", received=value, remedy=_FORMS
            )
        if isinstance(value, str):
            value = _parse(value, of)
        if value < 0:
            raise InvalidInput("A memory size cannot be negative", received=value, remedy=_FORMS)
        return super().__new__(cls, value)

    def as_advised(self) -> "Size":
        """Returns the next size that prints as what it is: a person types advice in as it was read.

        Example:
            >>> Size(23_500_000), Size(23_500_000).as_advised() == Size("23 MiB")
            (Size('22 MiB'), True)
        """
        size = Size(-(-self // 2**20) * 2**20)
        while Size(str(size)) < self:  # a hundredth of a GiB is ten MiB
            size = Size(size + 2**20)
        return Size(str(size))

    def __str__(self) -> str:
        if self >= 2**30:
            return f"{self / 2**30:.2f} GiB"
        if self >= 2**20:
            return f"{self / 2**20:.0f} MiB" if self >= 10 * 2**20 else f"{self / 2**20:.1f} MiB"
        if self >= 2**10:
            return f"{self / 2**10:.1f} KiB"
        return f"{int(self)} B"

    def __repr__(self) -> str:
        return f"Size('{self}')"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


def check_memory(memory: int | str | None) -> None:
    """Refuses what is no memory to train in, before it is known what a percentage is a part of.

    Raises:
        InvalidInput: If it is no size, or nothing at all.
    """
    if memory is not None and Size(memory, of=2**60) == 0:
        raise InvalidInput("A training takes more than no memory", received=memory, remedy=_FORMS)


def _parse(text: str, of: int | None) -> int:
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise InvalidInput("That is not a size of memory", received=text, remedy=_FORMS)
    number, unit = float(match[1]), match[2].lower()
    if unit == "%":
        if of is None:
            raise InvalidInput(
                "A percentage needs a known total, which is missing here",
                received=text,
                remedy='Give the size itself, such as "8GiB"',
            )
        if not 0 < number <= 100:
            raise InvalidInput("A percentage of memory must be above 0 and at most 100", received=text)
        return int(of * number / 100)
    if unit not in _UNITS:
        raise InvalidInput("Unknown unit of memory", received=text, remedy=_FORMS)
    if unit == "" and "." in match[1]:
        raise InvalidInput(
            "A number without a unit must be a whole number of bytes", received=text, remedy=_FORMS
        )
    return int(number * _UNITS[unit])


def to_plain(value: Any) -> dict[str, Any]:
    """Returns a dataclass as plain data: sizes in bytes, tuples as lists, other dataclasses by their `to_json`."""
    return {each.name: plain(getattr(value, each.name)) for each in fields(value)}


def plain(part: Any) -> Any:
    """Returns one part of what `to_plain` returns."""
    if is_dataclass(part):
        return part.to_json() if hasattr(part, "to_json") else to_plain(part)
    if isinstance(part, Mapping):
        return {key: plain(value) for key, value in part.items()}
    if isinstance(part, list | tuple):
        return [plain(value) for value in part]
    if isinstance(part, Enum):
        return str(part)
    return int(part) if isinstance(part, Size) else part
