"""Names for the layers that a model makes anew in each of its calls: the same in every call."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from memfit.compat.keras_globals import names_from_the_first
from memfit.compat.keras_layers import all_layers


@contextmanager
def steady_names(model: Any) -> Iterator[None]:
    """Lets what a model makes while it is traced be named as in any other trace of it.

    Segments refer to ops by their names, and a layer that calls `keras.layers.add([x, y])` makes one that is named
    `add_14`, and the next time `add_19`. What an unbuilt layer makes stays, and is named as Keras would.
    """
    if not all(layer.built for layer in all_layers(model)[1:]):
        yield
        return
    with names_from_the_first():
        yield
