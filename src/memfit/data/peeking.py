"""Looking at the first batch of a user's data, and leaving what comes after it as it was."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import GeneratorType
from typing import Any


@dataclass(frozen=True)
class FirstBatch:
    """The first batch in the place of data that gives batches, where only shapes and types are to be read."""

    batch: Any

    def __getitem__(self, index: int) -> Any:
        return self.batch


def first_batch(data: Any) -> Any:
    """Returns the first batch of a `PyDataset`, or of anything else that gives batches by their number."""
    with keep_random_numbers(data):
        return data[0]


@contextmanager
def keep_random_numbers(data: Any = None) -> Iterator[None]:
    """Puts the random numbers of Python, of NumPy and of `data` itself back: augmentations draw them in a look."""
    import numpy as np

    put_back = [
        partial(random.setstate, random.getstate()),
        partial(np.random.set_state, np.random.get_state()),
    ]
    for value in getattr(data, "__dict__", {}).values():
        if isinstance(value, np.random.Generator):
            put_back.append(partial(setattr, value.bit_generator, "state", value.bit_generator.state))
        elif isinstance(value, np.random.RandomState):
            put_back.append(partial(value.set_state, value.get_state()))
        elif isinstance(value, random.Random):
            put_back.append(partial(value.setstate, value.getstate()))
    try:
        yield
    finally:
        for put in put_back:
            put()


def peek_at_generator(data: Any) -> tuple[Any, Any]:
    """Returns the first batch of a generator, and a generator that gives it again before the rest.

    Keras looks at generators in the same way.

    Raises:
        StopIteration: If there is no batch.
    """
    first = next(data)

    def again() -> Iterator[Any]:
        yield first
        yield from data

    return first, again()


def is_generator(data: Any) -> bool:
    """Whether `data` gives each of its batches only once."""
    return isinstance(data, GeneratorType)
