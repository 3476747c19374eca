"""Births and deaths as numbers: allocation n is born as n and dies as `death_of(n)`.

One number an event, because a replay goes through tens of thousands of them in as many microseconds.
"""


def death_of(allocation: int) -> int:
    """Returns the event of an allocation's death; a birth is the allocation's own number."""
    return ~allocation


def is_birth(event: int) -> bool:
    """Whether an event is a birth."""
    return event >= 0


def allocation_of(event: int) -> int:
    """Returns the number of the allocation that an event is about."""
    return event if event >= 0 else ~event
