"""The tiles of an image: where they begin, how far they overlap, and which part of each one's output is kept."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

from memfit.errors import InvalidInput
from memfit.training.tiles.extent import Extent
from memfit.training.tiles.reach import Extents, follow

Sizes = tuple[int, ...]
Slices = tuple[slice, ...]


@dataclass(frozen=True)
class Tile:
    """One tile.

    Attributes:
        taken: What of the image it is computed from.
        kept: Of each output (flat), what of the tile's is kept, and where in the whole output that goes.
    """

    taken: Slices
    kept: tuple[tuple[Slices, Slices], ...]


@dataclass(frozen=True)
class Grid:
    """How an image is cut: tiles of one size, which overlap by what the network looks at around a position.

    Attributes:
        image: The image's spatial size.
        tile: A tile's, its halo included.
        step: How far apart tiles begin.
    """

    model: Any
    image: Sizes
    tile: Sizes
    step: Sizes

    @property
    def count(self) -> int:
        """How many tiles there are."""
        return math.prod(len(self._starts(axis)) for axis in range(len(self.image)))

    @cached_property
    def output_sizes(self) -> list[Sizes]:
        """The spatial size of each output of the whole image."""
        outputs, _ = follow(self.model, _whole(self.image))
        return [tuple(extent.whole for extent in output) for output in outputs]

    def tiles(self) -> Iterator[Tile]:
        """Lists the tiles; together, what is kept of them is the whole output."""
        for corner in product(*(self._starts(axis) for axis in range(len(self.image)))):
            cut = zip(self.image, corner, self.tile, strict=True)
            extents = tuple(Extent.cut(image, first, size) for image, first, size in cut)
            outputs, _ = follow(self.model, extents)
            taken = tuple(slice(each.first, each.first + each.size) for each in extents)
            yield Tile(taken, tuple(map(_keep, outputs)))

    def _starts(self, axis: int) -> list[int]:
        last = self.image[axis] - self.tile[axis]
        return [*range(0, last, self.step[axis]), last]


class Layout:
    """What decides how images of one size may be cut.

    Attributes:
        image: The spatial size of the images.
        period: For each axis, what the place of a tile is a multiple of: the network's strides together.
        halo: For each axis, the positions of a tile between others that are computed for its neighbours' sake.

    Raises:
        InvalidInput: If a layer looks at the whole image.
    """

    def __init__(self, model: Any, image: Sizes) -> None:
        self._model, self.image = model, image
        _, between = follow(model, _whole(image))
        scales = [[extent.scale for extent in tensor] for tensor in [_whole(image), *between]]
        self.period = tuple(
            math.lcm(*(scale.denominator for scale in axis)) for axis in zip(*scales, strict=True)
        )
        self.halo = tuple(self._find_halo(axis) for axis in range(len(image)))

    @property
    def least(self) -> Sizes:
        """The smallest tile."""
        return tuple(
            self._round_up(axis, self.halo[axis] + self.period[axis]) for axis in range(len(self.image))
        )

    def lay(self, tile: Sizes) -> Grid:
        """Lays tiles of at most a size over an image.

        Raises:
            InvalidInput: If a tile is not larger than its halo.
        """
        sizes, steps = [], []
        for axis, (image, wanted, period) in enumerate(zip(self.image, tile, self.period, strict=True)):
            # Padding depends on what a size leaves when it is divided by the strides.
            size = image if wanted >= image else wanted - (wanted - image) % period
            step = image if size == image else (size - self.halo[axis]) // period * period
            if step < 1:
                raise InvalidInput(
                    f"A tile has to be larger than its halo, which is {self.halo[axis]} positions of it here",
                    received=f"tiles={wanted}",
                    remedy=f"Give at least {self.least[axis]}",
                )
            sizes.append(size)
            steps.append(step)
        return Grid(self._model, self.image, tuple(sizes), tuple(steps))

    def _find_halo(self, axis: int) -> int:
        """Looks at a tile that is cut on both sides."""
        size, extents = self.image[axis], list(_whole(self.image))
        extents[axis] = Extent(size, size, 0, 0, size)
        outputs, _ = follow(self._model, tuple(extents))
        inner = min(
            math.floor((output[axis].high - output[axis].low) / output[axis].scale) for output in outputs
        )
        return size - inner

    def _round_up(self, axis: int, size: int) -> int:
        image = self.image[axis]
        return min(image, size + (image - size) % self.period[axis])


def _whole(image: Sizes) -> Extents:
    return tuple(Extent(size, size) for size in image)


def _keep(output: Extents) -> tuple[Slices, Slices]:
    ranges = [extent.valid() for extent in output]
    firsts = [extent.first for extent in output]
    there = tuple(slice(first + low, first + high) for first, (low, high) in zip(firsts, ranges, strict=True))
    return tuple(slice(low, high) for low, high in ranges), there
