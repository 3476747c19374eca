"""Batches of decoded images: from the store where they are kept, else from the files, with bad files found.

Decoding runs in parallel in TensorFlow's own ops, which fail without saying for which file. So failures are
dropped there, and the sequential stage behind notices which positions are missing; only then Python is asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from memfit.compat.tf_graphs import Tensor
from memfit.data.bad_files import BadFiles
from memfit.data.decoding import decode
from memfit.data.sizing import Sizing
from memfit.data.stores import ABSENT, BAD, KEPT, Store

_NO_FILE = -1


@dataclass(frozen=True)
class Loader:
    """Decodes files, numbered in the order of `paths`.

    Attributes:
        paths: The files.
        size: Height and width to resize to.
        channels: 1 or 3.
        sizing: How many are decoded at the same time.
        store: Where decoded images are kept, or None.
        bad_files: What happens to files that are no images.
    """

    paths: Sequence[str]
    size: tuple[int, int]
    channels: int
    sizing: Sizing
    store: Store | None
    bad_files: BadFiles

    @cached_property
    def _path_tensor(self) -> Tensor:
        """Made eagerly and captured: as a constant in a function it would be copied with every function."""
        with tf.init_scope():
            return tf.constant(list(self.paths))

    def batches(self, first: Tensor, chosen: Tensor, batch_size: Tensor) -> Any:
        """Returns a dataset of `(batch number, file numbers, images)` for the chosen files in their order.

        The first batch has the number `first`. Bad files that are left out make their own batch smaller, down to
        empty, and no other.
        """
        if self.store is None:
            return self._decoded(first, chosen, tf.zeros_like(chosen, tf.uint8), batch_size)
        with tf.name_scope("memfit"):
            states = tf.ensure_shape(tf.numpy_function(self._states, [chosen], tf.uint8), (None,))
        complete = tf.reduce_all(tf.equal(states, KEPT))
        to_gather = chosen[: tf.where(complete, tf.size(chosen), 0)]
        # Behind a flat_map of its own, the decoder is not even set up when everything is kept: that takes 0.1 s.
        decoded = tf.data.Dataset.range(tf.cast(tf.logical_not(complete), tf.int64)).flat_map(
            lambda _: self._decoded(first, chosen, states, batch_size)
        )
        gathered = tf.data.Dataset.from_tensor_slices(to_gather).batch(batch_size).enumerate(first)
        return decoded.concatenate(
            gathered.map(lambda number, numbers: (number, numbers, self._kept(numbers)))
        )

    def _decoded(self, first: Tensor, chosen: Tensor, states: Tensor, batch_size: Tensor) -> Any:
        leaves_out = self.bad_files.policy != "raise"
        start = first * batch_size
        end = start + tf.size(chosen, tf.int64)

        def load(position: Tensor, number: Tensor, state: Tensor) -> Any:
            # A file known to be bad is not decoded again.
            good = tf.raw_ops.Assert(condition=tf.not_equal(state, BAD), data=[number])
            with tf.control_dependencies([good]):
                if self.store is None:
                    return position, number, self._read(number)
                image = tf.cond(
                    tf.equal(state, KEPT), lambda: self._kept(number[None])[0], lambda: self._read(number)
                )
                return position, number, image

        def check(expected: Tensor, position: Tensor, number: Tensor, image: Tensor) -> Any:
            def meet() -> Tensor:
                missing = chosen[expected - start : position - start]
                with tf.name_scope("memfit"):
                    return tf.ensure_shape(tf.numpy_function(self._meet, [missing], tf.int64), ())

            met = tf.cond(position > expected, meet, lambda: tf.constant(0, tf.int64))
            with tf.control_dependencies([met]):
                return position + 1, (tf.identity(expected), position, number, image)

        def finish_batch(positions: Tensor, numbers: Tensor, images: Tensor) -> Any:
            if leaves_out:
                numbers, images = _without_gaps(numbers, images)
            return positions[0] // batch_size, numbers, self._keep(numbers, images)

        elements = tf.data.Dataset.from_tensor_slices((tf.range(start, end), chosen, states))
        images = elements.map(
            load, num_parallel_calls=self.sizing.decoders, deterministic=True
        ).ignore_errors()
        # The end is an element too, so that missing files before it are noticed.
        nothing = tf.zeros((*self.size, self.channels), tf.uint8)
        finish = tf.data.Dataset.from_tensors((end, tf.constant(_NO_FILE, tf.int64), nothing))
        checked = images.concatenate(finish).scan(start, lambda expected, element: check(expected, *element))
        if leaves_out:
            placed = checked.flat_map(_with_gaps)
        else:
            whole = checked.map(lambda expected, position, number, image: (position, number, image))
            placed = whole.filter(lambda position, number, image: number != _NO_FILE)
        return placed.batch(batch_size).map(finish_batch)

    def _read(self, number: Tensor) -> Tensor:
        contents = tf.io.read_file(tf.gather(self._path_tensor, number))
        return decode(contents, self.size, self.channels, self.sizing.most_pixels)

    def _keep(self, numbers: Tensor, images: Tensor) -> Tensor:
        if self.store is None:
            return images
        with tf.name_scope("memfit"):
            kept = tf.numpy_function(self._put, [numbers, images], tf.int64)
        with tf.control_dependencies([kept]):
            return tf.identity(images)

    def _kept(self, numbers: Tensor) -> Tensor:
        assert self.store is not None
        with tf.name_scope("memfit"):
            images = tf.numpy_function(self.store.get, [numbers], tf.uint8)
        return tf.ensure_shape(images, (None, *self.size, self.channels))

    # Called from the graph, with NumPy arrays.

    def _states(self, chosen: Any) -> Any:
        assert self.store is not None
        self.store.refresh()
        return self.store.states[chosen]

    def _put(self, numbers: Any, images: Any) -> Any:
        assert self.store is not None
        new = self.store.states[numbers] == ABSENT
        if new.all():  # without a copy, which picking some of them makes
            self.store.put(numbers, images)
        elif new.any():
            self.store.put(numbers[new], images[new])
        return np.int64(0)

    def _meet(self, missing: Any) -> Any:
        paths = [self.paths[number] for number in missing]
        self.bad_files.meet(paths, self.size, self.channels, self.sizing.most_pixels)
        if self.store is not None:
            self.store.states[missing] = BAD
        return np.int64(len(missing))


def _with_gaps(expected: Tensor, position: Tensor, number: Tensor, image: Tensor) -> Any:
    """The image behind as many placeholders as positions are missing before it."""
    real = tf.cast(number != _NO_FILE, tf.int64)
    positions = tf.data.Dataset.range(expected, position + real)
    return positions.map(lambda p: (p, tf.where(p == position, number, _NO_FILE), image))


def _without_gaps(numbers: Tensor, images: Tensor) -> Any:
    """The batch without placeholders; nothing is copied where there are none."""
    real = numbers != _NO_FILE
    return tf.cond(
        tf.reduce_all(real),
        lambda: (numbers, images),
        lambda: (tf.boolean_mask(numbers, real), tf.boolean_mask(images, real)),
    )
