"""The random numbers of a micro-batch: those that its samples would get in the whole batch.

TensorFlow draws from a seed with a counter: the n-th number of a draw depends on the seed and on n alone. So a
micro-batch draws the rows of its samples by starting at their place in the whole batch's draw. All micro-batches
begin with the seeds that the batch began with.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from memfit.compat.keras_globals import shared_seed_generator
from memfit.compat.keras_layers import own_seed_generators
from memfit.compat.tf_graphs import known_lengths
from memfit.compat.tf_random import Draw, draws_replaced

# Bytes that one step of the counter gives; types of less than four bytes take four as well.
_COUNTER_BYTES = 16
_LEAST_BYTES = 4


class Seeds:
    """The seeds of a model's random layers, and of Keras's own draws, as they are now.

    Args:
        owner: A Keras model, or a loss function, which knows its seeds itself.
    """

    def __init__(self, owner: Any) -> None:
        if hasattr(owner, "seed_states"):
            states = list(owner.seed_states)
        else:
            states = [generator.state.value for generator in own_seed_generators(owner)]
        if (shared := shared_seed_generator()) is not None:
            states.append(shared.state.value)
        self._states = list({id(state): state for state in states}.values())
        self._values: Sequence[Any] = [tf.identity(state) for state in self._states]

    def put_back(self) -> None:
        """Lets the next draws be the first ones again."""
        for state, value in zip(self._states, self._values, strict=True):
            state.assign(value)


@contextmanager
def draw_rows_of_batch(start: Any, size: Any) -> Iterator[list[Draw]]:
    """Lets all draws whose first dimension is that of the samples draw the rows from `start` on.

    Args:
        start: The first sample of the micro-batch, a tensor.
        size: How many samples it has, a tensor.

    Yields:
        The draws that were made, to be looked at when the block has ended.
    """
    draws: list[Draw] = []

    def replace(draw: Draw) -> Any:
        draws.append(draw)
        shape = draw.arguments.get("shape")
        known = None if shape is None else known_lengths(shape)
        if known is not None and None not in known:
            return draw.call(**draw.arguments)  # it has no samples: all parts of a batch share it
        in_row = [] if known is None else [length for length in known[1:] if length is not None]
        if known is None or len(in_row) < len(known) - 1 or not draw.by_counter:
            return draw.call(**draw.arguments | _vary(draw.arguments, start))
        return _draw_rows(draw, tf.convert_to_tensor(shape), math.prod(in_row), start, size)

    with draws_replaced(replace):
        yield draws


def _draw_rows(draw: Draw, shape: Any, numbers_in_row: int, start: Any, size: Any) -> Any:
    dtype = tf.as_dtype(draw.arguments.get("dtype") or draw.arguments["minval"].dtype)
    at_once = _COUNTER_BYTES // max(_LEAST_BYTES, dtype.size)
    rows = tf.cast(shape[0], tf.int64)
    per_sample = rows // tf.cast(size, tf.int64) * numbers_in_row
    first = tf.cast(start, tf.int64) * per_sample
    begun = first % at_once  # of what the first step of the counter gives, these belong to the sample before
    arguments = draw.arguments | {"counter": _move(draw.arguments["counter"], first // at_once, low=True)}
    if numbers_in_row % at_once == 0:
        return draw.call(**arguments)
    numbers = draw.call(**arguments | {"shape": [rows * numbers_in_row + begun]})
    return tf.reshape(numbers[begun:], shape)


def _vary(arguments: dict[str, Any], start: Any) -> dict[str, Any]:
    """Arguments for other numbers in every micro-batch, where those of the whole batch cannot be drawn."""
    if "counter" in arguments:
        return {"counter": _move(arguments["counter"], tf.cast(start, tf.int64), low=False)}
    seed = tf.convert_to_tensor(arguments["seed"])
    return {"seed": seed + tf.cast(start, seed.dtype)}


def _move(counter: Any, steps: Any, *, low: bool) -> Any:
    """Moves the lower or the higher half of a counter."""
    zero = tf.zeros_like(steps)
    moved = tf.bitcast(counter, tf.int64) + tf.stack([steps, zero] if low else [zero, steps])
    return tf.bitcast(moved, tf.uint64)
