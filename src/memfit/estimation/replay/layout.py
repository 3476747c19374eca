"""How Keras makes a model's variables, with the gaps that leaves."""

from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple

from memfit.estimation.replay.allocator import rounded
from memfit.estimation.replay.events import death_of

# What TensorFlow knows a variable by.
_HANDLE = 200
# Variables up to this size are statistics, scales and biases. A step has several buffers of the size of each at
# once, and several of the smallest size.
_SMALL = 2**14
_OF_EACH = 8
# The smallest buffer.
PLACE = 256


class LayingOut(NamedTuple):
    """Births and deaths while variables are made.

    Attributes:
        codes: The births and deaths.
        sizes: The bytes of each allocation, as the allocator rounds them; the first are the variables.
        begins: Where those of each variable begin, and where all end.
    """

    codes: list[int]
    sizes: list[int]
    begins: list[int]


def laying_out(variables: Sequence[int], random: Set[int]) -> LayingOut:
    """Returns how variables of these sizes are made, those whose values are drawn at `random` with more buffers.

    Small as the others are, it is them that open the first region.
    """
    sizes = list(variables)
    codes: list[int] = []
    begins: list[int] = []

    def make(size: int) -> int:
        sizes.append(size)
        codes.append(len(sizes) - 1)
        return codes[-1]

    for index, size in enumerate(variables):
        begins.append(len(codes))
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
    return LayingOut(codes, [rounded(size) for size in sizes], [*begins, len(codes)])


def nursery(variables: Iterable[int]) -> list[int]:
    """Returns the bytes of the gaps that the guard makes for what is small in a planned step.

    What a normalisation keeps for the backward pass, and its new statistics, are as large as its variables and live
    through most of the step. The allocator takes the smallest gap that does: these, and none between large tensors.

    Args:
        variables: The bytes of the model's variables.
    """
    small = [size for size in variables if size <= _SMALL]
    return [size for one in small for size in (*[PLACE] * _OF_EACH, *[one] * _OF_EACH)]
