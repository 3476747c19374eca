"""Arrays that stay on the host: a step takes from them only the samples that it computes.

Keras turns arrays into tensors before the first step, and keeps some batches ready. Here Keras shuffles and batches
the samples' numbers instead, with its own code and so in its own order, and a step looks up what it needs: the
whole batch, or one micro-batch after the other.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from memfit.compat import keras_data, keras_training
from memfit.data.shapes import count_samples, leaves_of
from memfit.estimation.recording.step import READ
from memfit.steps.installing import is_custom
from memfit.steps.micro_batches.samples import Samples

Step = Callable[[Any], dict[str, Any]]


class HostArrays:
    """What steps take their samples from.

    A step is compiled with it and may be kept for the next `fit`; in between it holds no array.

    Args:
        arrays: Arrays in the structure of (x, y, sample_weight) that a step gets.
    """

    def __init__(self, arrays: Any) -> None:
        self._specs = keras.tree.map_structure(_spec, arrays)
        self._leaves: list[np.ndarray] = []

    @contextmanager
    def holding(self, arrays: Any) -> Iterator[None]:
        """Lets steps read these arrays for a while."""
        self._leaves = leaves_of(arrays)
        try:
            yield
        finally:
            self._leaves = []

    def feed(self, step: Step) -> Step:
        """Makes a step of samples' numbers from a step of a batch."""

        def on_numbers(data: Any) -> dict[str, Any]:
            (numbers,) = keras.tree.flatten(data)
            return step(HostSamples(self, numbers))

        return on_numbers

    def read(self, data: Any) -> Any:
        """Returns the arrays of a batch, of which Keras gave the numbers."""
        (numbers,) = keras.tree.flatten(data)
        return self._packed([leaf[numbers.numpy()] for leaf in self._leaves])

    def take(self, numbers: tf.Tensor) -> Any:
        """Returns the samples of these numbers as tensors; in a graph they are read when it runs."""
        present = leaves_of(self._specs)
        with tf.name_scope(READ):
            tensors = tf.numpy_function(
                lambda wanted: [leaf[wanted] for leaf in self._leaves],
                [numbers],
                [spec.dtype for spec in present],
                stateful=False,
            )
        for tensor, spec in zip(tensors, present, strict=True):
            tensor.set_shape([numbers.shape[0], *spec.shape[1:]])
        return self._packed(tensors)

    @property
    def specs(self) -> Any:
        """Specs of (x, y, sample_weight), the number of samples unknown."""
        return keras.utils.unpack_x_y_sample_weight(self._specs)

    def _packed(self, leaves: list[Any]) -> Any:
        left = iter(leaves)
        return keras.tree.map_structure(lambda spec: None if spec is None else next(left), self._specs)


class HostSamples(Samples):
    """A batch of which only the samples' numbers are there."""

    def __init__(self, arrays: HostArrays, numbers: tf.Tensor) -> None:
        self._arrays, self._numbers = arrays, numbers
        self.static_count = numbers.shape[0]
        self.count = tf.shape(numbers)[0]
        self.specs = arrays.specs

    def whole(self) -> Any:
        """Takes the whole batch."""
        return self._arrays.take(self._numbers)

    def part(self, start: Any, size: Any) -> tuple[Any, Any, Any]:
        """Takes some samples of it."""
        batch = self._arrays.take(tf.slice(self._numbers, [start], [size]))
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        return x, y, sample_weight


@contextmanager
def on_host(
    model: keras.Model, arguments: dict[str, Any], wanted: bool
) -> Iterator[tuple[dict[str, Any], HostArrays | None]]:
    """Leaves the arrays of a call of `fit` on the host, where that is wanted and possible.

    Yields:
        The arguments, with the samples' numbers in place of arrays; and what the steps read, or None where the
        arguments are the same.
    """
    parts = (arguments["x"], arguments["y"], arguments["sample_weight"])
    if not wanted or why_not_host_arrays(model, parts) is not None:
        yield arguments, None
        return
    numbered = dict(arguments)
    if arguments["validation_split"] and arguments["validation_data"] is None:
        parts, numbered["validation_data"] = keras_data.split_off_validation(
            parts, arguments["validation_split"]
        )
    arrays = keras_data.arrays_of_fit(*parts, arguments["class_weight"])
    kept = keras_training.kept_steps(model)
    shapes = repr(keras.tree.map_structure(_spec, arrays))
    host = kept.setdefault(("arrays", shapes), HostArrays(arrays))
    numbers = np.arange(count_samples(arrays))
    numbered.update(x=numbers, y=None, sample_weight=None, class_weight=None, validation_split=0.0)
    keras_training.build(model, *host.specs)
    with host.holding(arrays):
        yield numbered, host


def why_not_host_arrays(model: Any, data: Any) -> str | None:
    """Says why the samples cannot be taken from the host's arrays as they are needed, or None where they can.

    Args:
        data: What it will be trained on; None where that is not known, which is taken for arrays.
    """
    if model.jit_compile and not model.run_eagerly:
        return "a step compiled by XLA cannot read from the host"
    if is_custom(model, "train_step"):
        return "its train_step is custom"
    if keras_training.has_strategy(model):
        return "a distribution strategy feeds the steps"
    if data is not None and not are_arrays(data):
        return "the data comes in batches already, or not as NumPy arrays"
    return None


def are_arrays(data: Any) -> bool:
    """Whether data is NumPy arrays of numbers and nothing else, in any nested structure."""
    leaves = leaves_of(data)
    return bool(leaves) and all(
        isinstance(leaf, np.ndarray) and leaf.ndim > 0 and leaf.dtype.kind in "biuf" for leaf in leaves
    )


def _spec(array: Any) -> Any:
    return None if array is None else tf.TensorSpec([None, *array.shape[1:]], array.dtype)
