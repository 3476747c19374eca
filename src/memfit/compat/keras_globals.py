"""What Keras keeps for a whole process: its own random generator, and the names of layers that have none.

Checked with Keras 3.12.0 and 3.15.1.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def shared_seed_generator() -> Any:
    """Keras's own generator for draws without one; None where it was not used yet."""
    return _global("global_seed_generator")


def name_counters() -> dict[str, int]:
    """How often each name was given; what is changed in it changes the names to come.

    A layer that makes others when it is built, as MultiHeadAttention does, names them by these counters.
    """
    counters: dict[str, int] = _global("object_name_uids", defaultdict(int))
    return counters


@contextmanager
def names_left_alone() -> Iterator[None]:
    """Lets layers that are made outside of the block have the names that they would have without it."""
    counters = name_counters()
    before = dict(counters)
    try:
        yield
    finally:
        counters.clear()
        counters.update(before)


@contextmanager
def names_from_the_first() -> Iterator[None]:
    """Lets layers that are made in the block have the same names every time; those made later as without it."""
    counters = name_counters()
    before = dict(counters)
    counters.clear()
    try:
        yield
    finally:
        for name, count in before.items():
            counters[name] += count


def _global(name: str, default: Any = None) -> Any:
    from keras.src.backend.common.global_state import get_global_attribute

    return get_global_attribute(name, default, set_to_default=default is not None)
