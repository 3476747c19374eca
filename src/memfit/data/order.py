"""The order of the samples in each epoch: drawn from (seed, epoch) alone, so that any batch can be gone back to.

Keras asks a dataset for a new iteration in every epoch and does not say which epoch it is. So the pipeline keeps
a position: the epoch, and the batch to begin it at. It moves on to the next epoch when the last batch of this one
has been handed out, and only then: an iteration that is left half-way (Keras looks at one batch to build
a model; a notebook shows a few pictures) changes nothing, and the epoch begins again in the same order. Nothing
else about an iteration depends on the past, so a new process that is told the position goes on as the old one
would have.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from memfit.compat.tf_datasets import note_batch_size
from memfit.compat.tf_graphs import Tensor
from memfit.data.sizing import limit_tuning
from memfit.errors import InvalidInput


@dataclass
class Position:
    """Where the next iteration begins.

    Attributes:
        epoch: Which epoch's order and augmentation it has.
        batch: Which batch of that epoch comes first.
        share: A rank and how many there are: of every batch only that rank's share is read.
    """

    epoch: int = 0
    batch: int = 0
    share: tuple[int, int] = (0, 1)


class Iteration(NamedTuple):
    """One pass, as the graph of a pipeline knows it.

    Attributes:
        epoch: Which epoch's order and augmentation it has.
        batch: Which batch of that epoch comes first.
        numbers: The samples from there on, in their order.
        size: How many of them make a batch.
        rank: Of which rank's share they are.
        ranks: How many ranks there are; 1 where the share is all.
    """

    epoch: Tensor
    batch: Tensor
    numbers: Tensor
    size: Tensor
    rank: Tensor
    ranks: Tensor


@dataclass(frozen=True)
class Order:
    """Which samples make up which batch.

    Attributes:
        count: Samples in all, before sharding.
        batch_size: Samples in a batch.
        shuffle: Whether every epoch has its own random order.
        seed: What the order is drawn from.
        shard: Worker's index and number of workers: of the epoch's order, every n-th sample.
        position: Where the next iteration begins.
    """

    count: int
    batch_size: int
    shuffle: bool
    seed: int
    shard: tuple[int, int] = (0, 1)
    position: Position = field(default_factory=Position)

    def __post_init__(self) -> None:
        for name, value in (("batch_size", self.batch_size), ("seed", self.seed)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise InvalidInput(f"{name} is a whole number", received=value)
        if self.batch_size < 1:
            raise InvalidInput("batch_size is at least 1", received=self.batch_size)
        index, workers = self.shard
        if not 0 <= index < workers:
            raise InvalidInput("shard is (index, workers), with 0 <= index < workers", received=self.shard)
        if workers > self.count:
            raise InvalidInput(
                "Every worker needs at least one sample", received=f"{self.count} for {workers}"
            )

    @property
    def samples(self) -> int:
        """Samples of this shard in an epoch."""
        index, workers = self.shard
        return (self.count - index + workers - 1) // workers

    @property
    def batches(self) -> int:
        """Batches of this shard in an epoch; the last one may be smaller."""
        return -(-self.samples // self.batch_size)

    def of_epoch(self, epoch: int) -> Any:
        """Returns this shard's samples of an epoch in their order, as int64."""
        order = np.arange(self.count, dtype=np.int64)
        if self.shuffle:
            # PCG64 seeded with both numbers: neighbouring seeds and epochs are unrelated.
            order = np.random.default_rng([abs(self.seed), int(self.seed < 0), int(epoch)]).permutation(order)
        return order[self.shard[0] :: self.shard[1]]

    def seek(self, epoch: int, batch: int) -> None:
        """Lets the next iteration begin at this batch of this epoch, both counted from 0."""
        if epoch < 0 or not 0 <= batch <= self.batches:
            raise InvalidInput(
                f"An epoch here has {self.batches} batches, counted from 0",
                received=f"epoch={epoch}, batch={batch}",
            )
        whole = batch == self.batches
        self.position.epoch, self.position.batch = epoch + whole, 0 if whole else batch

    def begin(self) -> tuple[Any, ...]:
        """Returns the fields of an `Iteration` that begins where the last one has ended."""
        epoch, batch = self.position.epoch, self.position.batch
        numbers, size = self.of_epoch(epoch)[batch * self.batch_size :], self.batch_size
        rank, count = self.position.share
        if count > 1:
            batches = np.split(numbers, range(size, len(numbers), size))
            numbers = np.concatenate([np.array_split(each, count)[rank] for each in batches])
            size = len(np.array_split(np.arange(size), count)[rank])
        return *map(np.int64, (epoch, batch)), numbers, *map(np.int64, (size, rank, count))

    @contextmanager
    def sharing(self, rank: int, count: int) -> Iterator[bool]:
        """Lets iterations read a rank's share of every batch; yields False where a rank would have none of one."""
        least = self.samples % self.batch_size or self.batch_size
        if min(least, self.batch_size) < count:
            yield False
            return
        self.position.share = (rank, count)
        try:
            yield True
        finally:
            self.position.share = (0, 1)


def per_iteration(order: Order, make_batches: Callable[[Iteration], Any]) -> Any:
    """Returns a dataset that is made anew in every iteration, where `order` says that it begins."""

    def begin(_: Tensor) -> Any:
        with tf.name_scope("memfit"):
            fields = tf.numpy_function(order.begin, [], [tf.int64] * len(Iteration._fields))
        shapes = Iteration((), (), (None,), (), (), ())
        return Iteration(*map(tf.ensure_shape, fields, shapes))

    dataset = tf.data.Dataset.range(1).map(begin).flat_map(make_batches)
    note_batch_size(dataset, order.batch_size)
    return dataset


def finish_iterations(dataset: Any, order: Order, *, ahead: int, memory: int) -> Any:
    """Returns batches of `(epoch, batch, element)` as batches of `element`, prepared ahead, with the end noted.

    The noting comes after the buffer of batches ahead, so that it happens when the last batch is handed out and
    not when it is prepared.
    """
    last = order.batches - 1

    def note(epoch: Any) -> Any:
        order.position.epoch, order.position.batch = int(epoch) + 1, 0
        return epoch

    def hand_out(epoch: Tensor, batch: Tensor, element: Any) -> Any:
        with tf.name_scope("memfit"):
            noted = tf.cond(
                tf.equal(batch, last), lambda: tf.numpy_function(note, [epoch], tf.int64), lambda: epoch
            )
        # Without a use of it tf.data would drop the call as dead code.
        with tf.control_dependencies([noted]):
            return tf.nest.map_structure(tf.identity, element)

    return limit_tuning(dataset.prefetch(ahead).map(hand_out), memory)
