"""What stands in for a model's `predict_function` and `test_function` where images are computed in tiles."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from memfit.compat import keras_training
from memfit.compat.keras_layers import output_structure, set_logits
from memfit.training.guard.ending import EndOfData
from memfit.training.guard.events import Journal, OutOfMemory, Shortage, attempt
from memfit.training.guard.reading import Reader
from memfit.training.peers import ALONE
from memfit.training.tiles.choosing import check_tiles, choose_grid, find_grid
from memfit.training.tiles.grid import Grid, Layout, Sizes, Tile
from memfit.training.tiles.network import TileNetwork
from memfit.training.tiles.reach import check_tileable

# How large a tile is tried after one that ran out of memory, as a part of it.
_SMALLER = 0.6


class Tiling:
    """Computes a model's outputs tile by tile, one image at a time; whole outputs are on the host.

    Args:
        tiles: "auto", the side of a tile, or its sides, halo included.
        phase: "prediction" or "validation", for what is told of memory that runs out.
    """

    def __init__(self, model: keras.Model, tiles: Any, phase: str, journal: Journal) -> None:
        self._model, self._phase, self._journal = model, phase, journal
        self._axes = check_tileable(model)
        self._sides = check_tiles(tiles, self._axes)
        self._networks: dict[Sizes, TileNetwork] = {}
        self._grids: dict[Sizes, Grid] = {}
        self._batch = 0

    def predict(self, batches: list[Any]) -> Any:
        """Predicts some batches, as Keras's `predict_function` does; returns NumPy arrays."""
        outputs = [self.compute(keras.utils.unpack_x_y_sample_weight(batch)[0])[0] for batch in batches]
        joined = [
            np.concatenate(parts) if len(parts) > 1 else parts[0] for parts in zip(*outputs, strict=True)
        ]
        return keras.tree.pack_sequence_as(output_structure(self._model), joined)

    def compute(self, x: Any) -> tuple[list[Any], list[Any]]:
        """Returns the outputs (flat) of a batch of images as arrays, and their logits, as far as they have some."""
        self._batch += 1
        (images,) = keras.tree.flatten(x)
        image = tuple(images.shape[1:-1])
        while True:
            grid = self._grids.get(image) or self._choose(image, images)
            result, lack = attempt(partial(self._compute_images, grid, images))
            if lack is None:
                return result
            self._shrink(image, grid, lack)

    def _choose(self, image: Sizes, images: Any) -> Grid:
        layout = Layout(self._model, image)
        if self._sides is not None:
            grid = layout.lay(self._sides)
        else:
            first = partial(self._compute_first, images)
            chosen, _ = attempt(lambda: choose_grid(layout, self._network, first))
            grid = chosen or find_grid(layout, 0)
        self._grids[image] = grid
        return grid

    def _shrink(self, image: Sizes, grid: Grid, lack: Shortage) -> None:
        """Takes smaller tiles, where they were not asked for.

        Raises:
            OutOfMemory: If there are none.
        """
        smaller = find_grid(Layout(self._model, image), _SMALLER * math.prod(grid.tile))
        self._networks.pop(grid.tile, None)
        if self._sides is not None or smaller.tile == grid.tile:
            self._journal.ran_out(self._phase, self._batch, lack, "Nothing smaller is left or allowed")
            raise OutOfMemory(
                f"Not enough memory for tiles of {_describe(grid.tile)}: {lack}. "
                "Free memory held by other programs or tensors, or use smaller tiles."
            )
        self._grids[image] = smaller
        done = f"Computed again in tiles of {_describe(smaller.tile)}"
        self._journal.ran_out(self._phase, self._batch, lack, done)

    def _compute_first(self, images: Any, grid: Grid) -> None:
        tile = next(grid.tiles())
        self._network(grid.tile)(images[(slice(0, 1), *tile.taken)])

    def _compute_images(self, grid: Grid, images: Any) -> tuple[list[Any], list[Any]]:
        outputs: list[Any] = []
        logits: list[Any] = []
        network, samples = self._network(grid.tile), int(images.shape[0])
        for tile in grid.tiles():
            for number in range(samples):
                made, made_logits = network(images[(slice(number, number + 1), *tile.taken)])
                for whole, parts in ((outputs, made), (logits, made_logits)):
                    if not whole:
                        whole += map(partial(_empty, samples), grid.output_sizes, parts)
                    _place(whole, parts, number, tile)
        return outputs, logits

    def _network(self, tile: Sizes) -> TileNetwork:
        if tile not in self._networks:
            self._networks[tile] = TileNetwork(self._model, tile)
        return self._networks[tile]


class TiledEvaluation:
    """Stands in for a model's `test_function`: the network in tiles, losses and metrics of whole outputs."""

    def __init__(self, model: keras.Model, tiles: Any, journal: Journal) -> None:
        self._model, self._reader = model, Reader("validation", journal)
        self._at_end = EndOfData(model, "test_function", journal, {}, ALONE)
        self._tiling = Tiling(model, tiles, "validation", journal)
        self._judge: Callable[..., Any] | None = None

    def __call__(self, iterator: Any) -> Any:
        """Evaluates as many batches as Keras wants to execute at once; returns the last one's logs."""
        return self._reader.each(iterator, self._model.steps_per_execution, self._evaluate, self._at_end)

    def _evaluate(self, data: Any) -> Any:
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        keras_training.build(self._model, x, y, weight)
        outputs, logits = self._tiling.compute(x)
        if self._judge is None:
            self._judge = tf.function(
                self._compute_metrics,
                autograph=False,
                reduce_retracing=True,
                jit_compile=self._model.jit_compile,
            )
        tensors = [
            [None if each is None else tf.constant(each) for each in some] for some in (outputs, logits)
        ]
        return self._judge(x, y, weight, *tensors)

    def _compute_metrics(self, x: Any, y: Any, weight: Any, outputs: list[Any], logits: list[Any]) -> Any:
        for output, logit in zip(outputs, logits, strict=True):
            if logit is not None:
                set_logits(output, logit)
        predicted = keras.tree.pack_sequence_as(output_structure(self._model), outputs)
        loss = keras_training.compute_loss(self._model, x, y, predicted, weight, training=False)
        keras_training.track_loss(self._model, loss, tf.shape(keras.tree.flatten(x)[0])[0])
        return self._model.compute_metrics(x, y, predicted, sample_weight=weight)


def _empty(samples: int, size: Sizes, part: Any) -> Any:
    """A host array for a whole output; None where a tile has none."""
    return None if part is None else np.empty((samples, *size, part.shape[-1]), part.dtype.as_numpy_dtype)


def _place(whole: list[Any], parts: list[Any], number: int, tile: Tile) -> None:
    """Puts what is kept of a tile where it belongs in whole outputs."""
    for array, part, (here, there) in zip(whole, parts, tile.kept, strict=True):
        if array is not None:
            array[(number, *there)] = part[(0, *here)].numpy()


def _describe(tile: Sizes) -> str:
    return "x".join(map(str, tile))
