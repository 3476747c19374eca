"""A process's share of every batch: all of it, unless the process is one rank of several.

To the losses a rank's share is one more micro-batch: its own sum, divided by the whole batch's divisor.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import tensorflow as tf

from memfit.steps.micro_batches.samples import Fraction, Part


def split_evenly(samples: int, rank: int, count: int) -> tuple[int, int]:
    """Returns where a rank's share of some samples begins and ends; the first ranks have one more of odd ones."""
    least, more = divmod(samples, count)
    first = rank * least + min(rank, more)
    return first, first + least + (rank < more)


class Communicator(Protocol):
    """What ranks do together; every rank calls the same, in the same order."""

    rank: int
    count: int

    def sum(self, tensors: Sequence[Any]) -> list[Any]:
        """Returns the sums over all ranks."""

    def sum_integers(self, numbers: Any) -> Any:
        """Returns the sums of a vector's whole numbers."""

    def joined(self, rows: Any) -> Any:
        """Returns the rows of all ranks, one behind the other."""

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all ranks, anything that JSON can write, in the order of the ranks."""


_ranks: Communicator | None = None


def use_ranks(ranks: Communicator) -> None:
    """Names the ranks that this process trains with."""
    global _ranks
    _ranks = ranks


def current_ranks() -> Communicator | None:
    """Returns the ranks that this process trains with; None where it trains alone."""
    return _ranks


class Share:
    """What a step has to know of the whole batch of which it computes a share; set before every step.

    Attributes:
        first: The number of the share's first sample in the whole batch.
        of: The samples of the whole batch.
        divisors: Those of the whole batch's losses; None where the number of samples tells them.
        meets_others: Whether ranks wait for each other within the step, for statistics of all their samples.
    """

    def __init__(self, *, meets_others: bool = False) -> None:
        self.meets_others = meets_others
        with tf.device("CPU:0"):
            self.first = tf.Variable(0, trainable=False)
            self.of = tf.Variable(1, trainable=False)
        self.divisors: tf.Variable | None = None

    def set(self, first: int, of: int, divisors: Any = None) -> None:
        """Notes what is known of the next batch."""
        self.first.assign(first)
        self.of.assign(of)
        if self.divisors is not None and divisors is not None:
            self.divisors.assign(divisors)
        elif divisors is not None:
            with tf.device("CPU:0"):
                self.divisors = tf.Variable(divisors, trainable=False, dtype=tf.float64)

    def fraction(self, samples: Any) -> Fraction:
        """Returns the part of the whole batch that some samples of the share are."""
        return Fraction(samples, self.of.read_value())

    def as_mean(self, value: Any, samples: Any) -> Any:
        """Returns what weighs as much with the share's samples as a share of a loss with the whole batch's."""
        return value * tf.cast(self.of.read_value(), value.dtype) / tf.cast(samples, value.dtype)

    def part(self, x: Any, y: Any, sample_weight: Any, samples: Any) -> Part:
        """Returns some samples of the share as a part of the whole batch."""
        divisors = None if self.divisors is None else self.divisors.read_value()
        return Part(x, y, sample_weight, self.fraction(samples), divisors)
