"""How Keras makes a model's variables, with the gaps that leaves."""

from collections.abc import Sequence, Set
from typing import NamedTuple

from memfit.estimation.replay.allocator import round_up
from memfit.estimation.replay.events import death_of

# What TensorFlow knows a variable by.
_HANDLE = 200


class Layout(NamedTuple):
    """Births and deaths while variables are made.

    Attributes:
        codes: The births and deaths.
        sizes: The bytes of each allocation, as the allocator rounds them; the first are the variables.
    """

    codes: list[int]
    sizes: list[int]


def lay_out(variables: Sequence[int], random: Set[int]) -> Layout:
    """Returns how variables of these bytes are made, those whose values are drawn at `random` with more buffers.

    Small as the others are, it is them that open the first region.
    """
    sizes = list(variables)
    codes: list[int] = []

    def make(size: int) -> int:
        sizes.append(size)
        codes.append(len(sizes) - 1)
        return codes[-1]

    for index, size in enumerate(variables):
        if index in random:
            # The seed, cast and wrapped; then the shape, the generator's key and counter; the value is drawn,
            # scaled and shifted, each into a buffer of its own.
            given, wide = make(8), make(16)
            codes.append(death_of(given))
            small = make(16)
            seed = make(8)
            codes += [death_of(small), death_of(wide)]
            shape, key, counter, drawn = (make(bytes_) for bytes_ in (16, 8, 16, size))
            scale, scaled = make(4), make(size)
            codes += [death_of(scale), index]
            codes += map(death_of, (scaled, shape, key, counter, drawn, seed))
        else:
            shape = make(4)
            codes += [index, death_of(shape)]
        make(_HANDLE)
    return Layout(codes, [round_up(size) for size in sizes])
