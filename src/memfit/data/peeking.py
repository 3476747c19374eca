"""Looking at the first batch of a user's data, and leaving what comes after it as it was."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
def keep_random_numbers(data: Any) -> Iterator[None]:
    """Puts the random numbers of Python, of NumPy and of `data` itself back: augmentations draw them in a look."""
    import numpy as np

    python, numpy = random.getstate(), np.random.get_state()
    values = list(getattr(data, "__dict__", {}).values())
    generators = [
        (value, value.bit_generator.state) for value in values if isinstance(value, np.random.Generator)
    ]
    legacy = [(value, value.get_state()) for value in values if isinstance(value, np.random.RandomState)]
    own = [(value, value.getstate()) for value in values if isinstance(value, random.Random)]
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        for generator, state in generators:
            generator.bit_generator.state = state
        for former, drawn in legacy:
            former.set_state(drawn)
        for one, counted in own:
            one.setstate(counted)


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
