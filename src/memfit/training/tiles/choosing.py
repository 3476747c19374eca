"""The size of tiles: what the user asks for, or the largest that the free memory is predicted to hold."""

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Literal

from memfit.budgets.budget import budget
from memfit.budgets.peaks import take_one_region
from memfit.errors import InvalidInput
from memfit.training.guard.room import measure_need
from memfit.training.tiles.grid import Grid, Layout, Sizes
from memfit.training.tiles.network import TileNetwork

# Each size that is tried next has sides of so much of the one before.
_SMALLER = 0.85
# The part of what is free that tiles may take: the allocator leaves gaps between large tensors, tiles that are a
# little smaller cost little, and one that fails costs TensorFlow's 10 s.
_FILLED = 0.6
# The part of it that the tile which is measured is predicted to take.
_MEASURED = 1 / 8


Tiles = int | tuple[int, ...] | Literal["auto"]


def check_alone(tiles: Any, micro_batch: int | None) -> None:
    """Refuses tiles of micro-batches: images are computed one at a time."""
    if micro_batch is not None:
        raise InvalidInput(
            "Tiles work on one image at a time: pass `tiles` or `micro_batch`, not both",
            received=f"tiles={tiles!r}, micro_batch={micro_batch}",
        )


def check_tiles(tiles: Any, axes: int) -> Sizes | None:
    """Returns the sides of tiles that were asked for; None for "auto".

    Raises:
        InvalidInput: If they are no sizes.
    """
    if tiles == "auto":
        return None
    sides = tiles if isinstance(tiles, tuple | list) else (tiles,) * axes
    if len(sides) != axes or any(
        isinstance(side, bool) or not isinstance(side, int) or side < 1 for side in sides
    ):
        raise InvalidInput(
            f'`tiles` is "auto", the side of a tile, or {axes} sides for this network', received=tiles
        )
    return tuple(sides)


def find_grid(layout: Layout, positions: float) -> Grid:
    """Finds the tiles of at most so many positions with the least work; the smallest tiles where all are larger.

    Tiles are cubes as a rule; an axis that is not cut at all has no halo, which may be less work.
    """
    grids = list(_list_grids(layout))
    small = [grid for grid in grids if math.prod(grid.tile) <= positions]
    if not small:
        return min(grids, key=lambda grid: math.prod(grid.tile))
    return min(small, key=lambda grid: (grid.count * math.prod(grid.tile), math.prod(grid.tile)))


def _list_grids(layout: Layout) -> Iterator[Grid]:
    image, least = layout.image, layout.least
    for whole in product((False, True), repeat=len(image)):
        side = max(image)
        while True:
            sides = zip(image, least, whole, strict=True)
            yield layout.lay(tuple(size if all_of_it else max(side, low) for size, low, all_of_it in sides))
            if side <= min(least):
                break
            side = int(side * _SMALLER)


def choose_grid(
    layout: Layout, networks: Callable[[Sizes], TileNetwork], compute: Callable[[Grid], Any]
) -> Grid:
    """Chooses the largest tiles for which there is room.

    What a tile takes is predicted from the traced network. Where the device counts its memory, a tile that is
    predicted to take a small part of it is measured: kernels take a workspace that no graph tells.

    Args:
        networks: Gives the network for a size of tiles.
        compute: Computes the first tile of a grid, to be measured.
    """
    take_one_region()  # of an arena: no tile's tensor lies across two
    room = _FILLED * budget().device.free
    least = find_grid(layout, 0)
    taken = networks(least.tile).predicted / math.prod(least.tile)
    small = find_grid(layout, _MEASURED * room / taken)
    positions = math.prod(small.tile)
    taken = max(networks(small.tile).predicted, measure_need(lambda: compute(small))[1]) / positions
    return find_grid(layout, room / taken)
