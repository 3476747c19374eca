"""The shapes of a data set's batches, found by looking through it without training."""

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# The shape of each tensor of a batch, in the order in which they are found in it.
BatchShape = tuple[tuple[int, ...], ...]
_progress = logging.getLogger("memfit.progress")


@dataclass(frozen=True)
class Seen:
    """How often a shape was seen, and in which batch first (counted from 0)."""

    count: int
    first: int


@dataclass(frozen=True)
class Shapes:
    """What a look through a data set found.

    Attributes:
        seen: The shapes, with how often and where.
        example: The structure of a batch, with an object that has a `dtype` for each tensor.
        batches: How many batches were looked at.
        complete: Whether these are all of them.
        total: How many there are, where that is known.
        seconds: What the look took.
        assumed: What had to be assumed, as sentences.
    """

    seen: Mapping[BatchShape, Seen]
    example: Any
    batches: int
    complete: bool
    total: int | None
    seconds: float
    assumed: tuple[str, ...] = ()

    @property
    def vary(self) -> bool:
        """Whether the shapes differ in more than the samples of a last, shorter batch."""
        return len(self.largest()) > 1 or len({tuple(each[1:] for each in shape) for shape in self.seen}) > 1

    def largest(self) -> list[BatchShape]:
        """The shapes that no other one covers, those with the most elements first."""
        largest: list[BatchShape] = []
        for shape in sorted(self.seen, key=count_elements, reverse=True):
            if not any(covers(other, shape) for other in largest):
                largest.append(shape)
        return largest

    def joined(self, share: float) -> BatchShape:
        """Returns a shape that covers at least so large a share of the batches: those with the fewest elements."""
        left = share * self.batches
        join: BatchShape | None = None
        for shape in sorted(self.seen, key=count_elements):
            join = shape if join is None else _join(join, shape)
            left -= self.seen[shape].count
            if left <= 0:
                break
        assert join is not None
        return join

    def describe(self, shape: BatchShape) -> str:
        """Says which batch has a shape first, such as "batch 7,312 of 10,000: (16, 2048), (16,)"."""
        of = f" of {self.total:,}" if self.total is not None else ""
        return f"batch {self.seen[shape].first:,}{of}: {', '.join(map(str, shape))}"

    @property
    def look(self) -> str:
        """Says how far the look went, as a sentence."""
        if self.complete:
            looked = f"looked at all {self.batches:,} batches in {self.seconds:.1f} s"
        else:
            of = "unknown" if self.total is None else f"{self.total:,}"
            looked = f"looked at {self.batches:,} of {of} batches in {self.seconds:.1f} s"
        return "; ".join([looked, *self.assumed])

    def like(self, shape: BatchShape) -> Any:
        """Returns a batch of a shape as TensorFlow's specs, in the structure of the data."""
        import keras
        import tensorflow as tf

        sizes = iter(shape)
        return keras.tree.map_structure(
            lambda leaf: None if leaf is None else tf.TensorSpec(next(sizes), leaf.dtype), self.example
        )


def covers(large: BatchShape, small: BatchShape) -> bool:
    """Whether a shape is at least as large as another in every dimension."""
    return len(large) == len(small) and all(
        len(a) == len(b) and all(x >= y for x, y in zip(a, b, strict=True))
        for a, b in zip(large, small, strict=True)
    )


def count_elements(shape: BatchShape) -> int:
    """The elements of all tensors of a batch."""
    return sum(map(math.prod, shape))


def leaves_of(batch: Any) -> list[Any]:
    """Lists the arrays or tensors of a batch, or of anything nested like one: None stands for what is not there."""
    import keras

    return [leaf for leaf in keras.tree.flatten(batch) if leaf is not None]


def shape_of(batch: Any) -> BatchShape:
    """Returns the shape of a batch; of a ragged tensor, as long as its longest row everywhere."""
    return tuple(map(_shape, leaves_of(batch)))


def count_samples(batch: Any) -> int:
    """Counts the samples in a batch."""
    import numpy as np

    first = leaves_of(batch)[0]
    return int((first.shape if hasattr(first, "shape") else np.shape(first))[0])


def _shape(leaf: Any) -> tuple[int, ...]:
    import numpy as np

    if hasattr(leaf, "bounding_shape"):
        return tuple(int(size) for size in leaf.bounding_shape())
    return tuple(int(size or 0) for size in (leaf.shape if hasattr(leaf, "shape") else np.shape(leaf)))


def tally(
    shapes: Iterator[Sequence[BatchShape]], example: Any, total: int | None, seconds: float, *assumed: str
) -> Shapes:
    """Counts shapes as they come, until they end or the time is over."""
    counts: dict[BatchShape, int] = {}
    firsts: dict[BatchShape, int] = {}
    begin, batches = time.monotonic(), 0
    for some in shapes:
        for shape in some:
            firsts.setdefault(shape, batches)
            counts[shape] = counts.get(shape, 0) + 1
            batches += 1
        _progress.info("looking at the shapes of the data: %d batches", batches)
        if time.monotonic() - begin >= seconds:
            break
    took = time.monotonic() - begin
    complete = took < seconds or batches == total  # shapes also end where the time does
    seen = {shape: Seen(count, firsts[shape]) for shape, count in counts.items()}
    return Shapes(seen, example, batches, complete, batches if complete else total, took, assumed)


def _join(first: BatchShape, second: BatchShape) -> BatchShape:
    return tuple(
        tuple(map(max, a, b)) if len(a) == len(b) else max(a, b, key=math.prod)
        for a, b in zip(first, second, strict=True)
    )
