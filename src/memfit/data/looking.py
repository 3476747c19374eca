"""Looking through a data set for the shapes of its batches, and leaving it as it was."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from memfit.compat import keras_data, tf_datasets
from memfit.data.peeking import is_generator, keep_random_numbers
from memfit.data.shapes import BatchShape, Shapes, shape_of, tally
from memfit.errors import CannotTell

# What a look may take, in seconds.
LOOK_SECONDS = 10.0
# Shapes that are read at once: reading one by one takes 1 ms each.
_AT_ONCE = 64
# A pipeline that shuffles is copied to be read; so are the arrays that it holds.
_COPIED = 2**28
_REMEDY = "Pass one of its largest batches as an example: data=(x, y)"
_PLAN_BEFORE = "Make a plan with memfit.plan(model, data=...), and give it as plan="


def look_at_shapes(data: Any, *, careful: bool = False, seconds: float = LOOK_SECONDS) -> Shapes:
    """Looks through a data set once, or as far as the time allows, and returns the shapes of its batches.

    Nothing is trained, random orders stay as they were, and a generator is never touched.

    Args:
        data: A `tf.data.Dataset` or `keras.utils.PyDataset`.
        careful: Whether not to run what might notice it: a dataset's Python code, or layers that draw numbers.
        seconds: After which no further batch is looked at.

    Raises:
        CannotTell: If the data cannot be looked at without changing what comes after it.
    """
    if is_generator(data):
        raise CannotTell(
            "A generator cannot be looked at without losing its batches",
            received="a generator",
            remedy=_REMEDY,
        )
    if keras_data.is_dataset(data):
        return _look_at_dataset(data, careful, seconds)
    return _look_at_batches(data, seconds)


def _look_at_dataset(data: Any, careful: bool, seconds: float) -> Shapes:
    import tensorflow as tf

    from memfit.budgets.peaks import take_one_region

    take_one_region()  # of an arena: the batches that are read must not break it into pieces
    single = tf_datasets.one_pass(data)
    parts = tf_datasets.dataset_parts(single)
    assumed = []
    why_not = next((reason for part in parts for reason in _doubts(part, careful)), None)
    if why_not is not None:
        remedy = _PLAN_BEFORE if careful else _REMEDY
        raise CannotTell(f"This dataset cannot be looked at before it is trained: {why_not}", remedy=remedy)
    if any(tf_datasets.shuffle_seeds(part) is not None for part in parts):
        assumed.append("it is shuffled: a later epoch may put its longest samples into other batches")
    single = keep_order(single)
    if any(isinstance(leaf, tf.RaggedTensorSpec) for leaf in tf.nest.flatten(single.element_spec)):
        assumed.append("a ragged batch is taken to be as long as its longest row everywhere")
    cardinality = int(single.cardinality())
    example = tf.nest.map_structure(lambda spec: spec, single.element_spec)
    return tally(
        _read(single, seconds), example, cardinality if cardinality >= 0 else None, seconds, *assumed
    )


def read_first(dataset: Any) -> Any:
    """Returns the first batch of a `tf.data.Dataset`, or None where it has none, or a look would be noticed."""
    single = tf_datasets.one_pass(dataset)
    if any(True for part in tf_datasets.dataset_parts(single) for _ in _doubts(part, True)):
        return None
    try:
        return next(iter(keep_order(single)), None)
    except CannotTell:
        return None


def keep_order(dataset: Any) -> Any:
    """Returns a dataset that can be read without moving the order of the given one on.

    Raises:
        CannotTell: If its arrays are too large to copy.
    """
    parts = tf_datasets.dataset_parts(dataset)
    if not any(tf_datasets.reshuffles(part) and any(tf_datasets.shuffle_seeds(part) or ()) for part in parts):
        return dataset
    held = sum(
        tensor.shape.num_elements() * tensor.dtype.size for tensor in tf_datasets.source_tensors(dataset)
    )
    if held > _COPIED:
        raise CannotTell(
            "This dataset cannot be looked at: it shuffles by a seed, and its arrays are too large to copy",
            remedy=_REMEDY,
        )
    return tf_datasets.with_own_order(dataset)


def _read(dataset: Any, seconds: float) -> Iterator[Sequence[BatchShape]]:
    """Yields the shapes of some batches at a time, of one at least; the data itself never leaves TensorFlow."""
    import tensorflow as tf

    begin = time.time()

    def measure(*element: Any) -> tuple[Any, ...]:
        return tuple(map(_dynamic_shape, tf.nest.flatten(element)))

    def is_first_or_in_time(number: Any, _: Any) -> Any:
        return (number == 0) | (tf.timestamp() - begin < seconds)

    shapes = dataset.map(measure).enumerate().take_while(is_first_or_in_time).map(lambda _, shapes: shapes)
    padded = shapes.padded_batch(_AT_ONCE, padding_values=tf.constant(-1, tf.int32))
    for rows in padded.as_numpy_iterator():
        yield [
            tuple(tuple(int(n) for n in each if n >= 0) for each in shape)
            for shape in zip(*rows, strict=True)
        ]


def _dynamic_shape(tensor: Any) -> Any:
    import tensorflow as tf

    if isinstance(tensor, tf.RaggedTensor):
        return tf.cast(tensor.bounding_shape(), tf.int32)
    return tf.cast(tensor.dense_shape, tf.int32) if isinstance(tensor, tf.SparseTensor) else tf.shape(tensor)


def _look_at_batches(data: Any, seconds: float) -> Shapes:
    """Looks at the batches of a `PyDataset`, or of anything else that gives batches by their number."""
    import keras

    total = int(getattr(data, "num_batches", None) or len(data))
    examples: list[Any] = []

    def read() -> Iterator[Sequence[BatchShape]]:
        for number in range(total):
            batch = data[number]
            if not examples:
                examples.append(_specs(tuple(batch) if isinstance(batch, list) else batch))
            yield [shape_of(batch)]

    with keep_random_numbers(data):
        look = tally(read(), None, total, seconds)
    base = keras.utils.PyDataset
    shuffles = isinstance(data, base) and type(data).on_epoch_end is not base.on_epoch_end
    assumed = ("its on_epoch_end may put its longest samples into other batches",) if shuffles else ()
    return Shapes(
        look.seen,
        examples[0],
        look.batches,
        look.complete,
        total,
        look.seconds,
        (*look.assumed, *assumed),
    )


def _specs(batch: Any) -> Any:
    import keras
    import numpy as np
    import tensorflow as tf

    def spec(leaf: Any) -> Any:
        array = leaf if hasattr(leaf, "shape") and hasattr(leaf, "dtype") else np.asarray(leaf)
        return tf.TensorSpec(array.shape, array.dtype)

    return keras.tree.map_structure(lambda leaf: None if leaf is None else spec(leaf), batch)


def _doubts(part: Any, careful: bool) -> Iterator[str]:
    """Yields why a stage of a pipeline would notice a look."""
    if tf_datasets.caches_in_file(part):
        yield "a look would leave an unfinished cache file"
    if not careful:
        return
    for op in tf_datasets.ops_of_functions(part):
        if op.op in tf_datasets.PYTHON_OPS:
            yield "it runs Python code, which might notice"
        elif op.op in tf_datasets.MOVING_OPS:
            yield "its random numbers depend on how many were drawn before"
