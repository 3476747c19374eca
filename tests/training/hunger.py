"""Parts of a model that ask for a chosen amount of memory at a chosen moment: real shortages, where wanted."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import keras
import tensorflow as tf

from memfit.budgets.arena import arena_cap

APPETITES: dict[str, tf.Variable] = {}
ALL = 2**32  # 16 GiB: more than an arena has


def appetite(place: str) -> tf.Variable:
    """How many float32 values a place asks for with every sample; none at first."""
    if place not in APPETITES:
        with tf.init_scope():
            APPETITES[place] = tf.Variable(0, dtype=tf.int64, trainable=False)
    return APPETITES[place]


def eat(place: str, tensor: Any) -> Any:
    """Returns the tensor after having asked for that memory, for every sample of it."""
    each = appetite(place).read_value()
    count = each * tf.shape(tensor, out_type=tf.int64)[0]
    # Zeros, but TensorFlow cannot know it and leave them out.
    asked = tf.fill([count], tf.cast(each < 0, tensor.dtype))
    return tensor + tf.reduce_sum(asked)


class Ballast(keras.callbacks.Callback):
    """Takes memory away before a batch, counted over the whole training from 1, and gives it back before another.

    Args:
        leave: The bytes that stay free.
        begin: The batch before which memory is taken.
        end: The batch before which it is given back; None for never.
    """

    def __init__(self, leave: int, begin: int, end: int | None = None) -> None:
        super().__init__()
        self.leave, self.begin, self.end = leave, begin, end
        self.batch = 0
        self.held: list[Any] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.batch += 1
        if self.batch == self.begin:
            cap = arena_cap()
            assert cap is not None
            piece = 4 * 2**20  # small enough for the holes that steps have left
            while cap - tf.config.experimental.get_memory_info("CPU:0")["current"] - piece > self.leave:
                self.held.append(tf.fill([piece // 4], 1.0))
        if self.batch == self.end:
            self.held.clear()


@contextmanager
def warnings(each: Callable[[], None] = lambda: None) -> Iterator[list[str]]:
    """Yields what memfit warns of, and does something with each warning."""
    said: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())
            each()

    log, handler = logging.getLogger("memfit"), Handler()
    log.addHandler(handler)
    try:
        yield said
    finally:
        log.removeHandler(handler)


def sated_by_a_warning() -> AbstractContextManager[list[str]]:
    """Ends all hunger as soon as memfit says that memory ran out; yields what it says."""

    def sate() -> None:
        for variable in APPETITES.values():
            variable.assign(0)

    return warnings(sate)


class Hungry(keras.layers.Layer):
    """Asks for memory in the forward pass (of training or not) and in the backward pass."""

    def call(self, x: Any, training: bool = False) -> Any:
        @tf.custom_gradient
        def asking(x: Any) -> tuple[Any, Callable[..., Any]]:
            return eat("forward" if training else "inference", x), lambda upstream: eat("backward", upstream)

        return asking(x)


class HungryMean(keras.metrics.Mean):
    """Asks for memory when it is updated."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return super().update_state(eat("metric", y_pred))


class HungryAdam(keras.optimizers.Adam):
    """Asks for memory in the middle of its update."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        if self._get_variable_index(variable) == 2:
            gradient = eat("update", gradient)
        super().update_step(gradient, variable, learning_rate)


class Menu(keras.callbacks.Callback):
    """Sets appetites before chosen batches, counted over the whole training, from 1."""

    def __init__(self, courses: dict[int, str]) -> None:
        super().__init__()
        self.courses = courses
        self.batch = self.tests = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.batch += 1
        if self.batch in self.courses:
            appetite(self.courses[self.batch]).assign(ALL)

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.tests += 1
        if -self.tests in self.courses:
            appetite(self.courses[-self.tests]).assign(ALL)
