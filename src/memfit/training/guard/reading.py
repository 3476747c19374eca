"""Reading batches under guard: a batch that was lost to a shortage is read again, where that is possible."""

import gc
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from memfit.errors import InvalidInput
from memfit.training.feeding import Feed, feed, feed_of
from memfit.training.guard.events import Journal, OutOfMemory, shortage
from memfit.training.running import current_runner

# How often the same batch is read again: TensorFlow waits 10 s for memory, and its threads fail on for a while.
_TRIES = 4


class Reader:
    """Takes batches from Keras's iterators and knows where in the data it is.

    Args:
        phase: What the batches are for, "training" or "validation".
        feed: The ways back to its data in this process; none unless told.
    """

    def __init__(self, phase: str, journal: Journal, feed: Feed = Feed()) -> None:  # noqa: B008 (frozen)
        self._phase, self._journal, self._feed = phase, journal, feed
        self._given: Any = None  # what Keras gives, kept so that no other iterator gets its identity
        self._iterator: Any = None
        self._epoch, self._batch = -1, 0

    @property
    def spec(self) -> Any:
        """What Keras's iterator promises of all its batches; None where it promises nothing."""
        return getattr(self._given, "element_spec", None)

    def next(self, iterator: Any) -> Any:
        """Returns the next batch.

        Raises:
            StopIteration: At the end of the data.
            OutOfMemory: If there was no memory to read a batch, and the data cannot be opened again.
        """
        if iterator is not self._given:
            self._given = self._iterator = iterator
            self._epoch, self._batch = self._epoch + 1, 0
        for left in reversed(range(_TRIES)):
            try:
                data = next(self._iterator)
                self._batch += 1
                return data
            except (tf.errors.OpError, RuntimeError) as error:
                lack = None if isinstance(error, tf.errors.OutOfRangeError) else shortage(error)
                if lack is None:
                    raise
            self._iterator = None
            gc.collect()
            place = f"batch {self._batch + 1} of the {self._phase} data"
            try:
                feed = self._feed if left else Feed()
                self._iterator = feed.reopen(self._epoch, self._batch)
            except InvalidInput:
                self._journal.ran_out("data", self._batch + 1, lack, f"Could not read {place}")
                raise OutOfMemory(
                    f"Not enough memory to read {place} ({lack}), and this data cannot be opened again at that "
                    "batch in this process. The model is as it was after the previous batch."
                ) from None
            self._journal.ran_out("data", self._batch + 1, lack, f"Opened the data again at {place}")
        raise AssertionError("the last try returns or raises")

    def each(
        self, iterator: Any, count: int, step: Callable[[Any], Any], at_end: Callable[[Any], None]
    ) -> Any:
        """Does a step with each of the next batches, fewer at the end of the data; returns the last one's logs.

        Args:
            at_end: What to call at the end of the data, with the iterator that has ended.

        Raises:
            StopIteration: If there is no batch left.
        """
        logs = None
        for _ in range(count):
            try:
                data = self.next(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                at_end(self._iterator)
                if logs is None:
                    raise StopIteration from None
                break
            logs = step(data)
        return logs


def reopenable(arguments: Mapping[str, Any]) -> tuple[Feed, Feed]:
    """The training and the validation data of a call of `fit`, as far as they may be opened again.

    Not where a new process is started at the lost batch, and not where Keras reads on in one
    iterator over several epochs.
    """
    train = validation = Feed()
    if current_runner().restarts:
        return train, validation
    fit = arguments
    if fit["steps_per_epoch"] is None and not isinstance(fit["x"], keras.utils.PyDataset):
        train = feed_of(fit)
    if fit["validation_data"] is not None and fit["validation_steps"] is None:
        parts = keras.utils.unpack_x_y_sample_weight(fit["validation_data"])
        if not isinstance(parts[0], keras.utils.PyDataset):
            size = fit["validation_batch_size"] or fit["batch_size"]
            validation = feed(*parts, batch_size=size, shuffle=False)
    return train, validation


def check_shapes(model: keras.Model, data: Any, batch: int) -> None:
    """Looks at a batch that a step has failed with: one sentence instead of an op's complaint.

    Raises:
        InvalidInput: If the batch is not of the shape that the model takes.
    """
    x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
    inputs = getattr(model, "inputs", None) or []
    parts = [x.get(tensor.name) for tensor in inputs] if isinstance(x, dict) else keras.tree.flatten(x)
    for tensor, part in zip(inputs, parts, strict=False):
        wanted, given = tuple(tensor.shape), tuple(getattr(part, "shape", tensor.shape))
        # Keras itself adds or takes away an axis of one, and says so where it cannot.
        if len(wanted) == len(given) and any(
            want not in (None, got) for want, got in zip(wanted, given, strict=True)
        ):
            raise InvalidInput(
                f'All batches must have the shape {wanted} that the model expects for "{tensor.name}"',
                received=f"{given} in batch {batch}",
                remedy="Crop, pad or drop what has another shape; the batches before it were trained",
            )
