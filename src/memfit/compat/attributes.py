"""Other attributes for an object of Keras's for a while, behind the back of Keras, which tracks what is set."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def overridden(thing: Any, **attributes: Any) -> Iterator[None]:
    """Lets an object have other attributes or methods; what it had itself, or has from its class, comes back."""
    own = {name: vars(thing)[name] for name in attributes if name in vars(thing)}
    for name, value in attributes.items():
        object.__setattr__(thing, name, value)
    try:
        yield
    finally:
        for name in attributes:
            if name in own:
                object.__setattr__(thing, name, own[name])
            else:
                object.__delattr__(thing, name)
