"""`memfit.images`: image files as batches, inside a budget of host memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from memfit.compat.tf_graphs import Tensor
from memfit.data.augmentation import Draw, Step, augmenter, mixes_samples
from memfit.data.bad_files import BadFiles
from memfit.data.loading import Loader
from memfit.data.order import Iteration, Order, finish_iterations, per_iteration
from memfit.data.pipeline import Pipeline
from memfit.data.shares import split_in_graph
from memfit.data.sizing import choose_store, size_up
from memfit.data.sources import Files, find_files, split
from memfit.errors import InvalidInput
from memfit.sizes import Size


def images(
    source: Any,
    labels: Any = None,
    *,
    size: tuple[int, int],
    batch_size: int = 32,
    channels: int = 3,
    validation_split: float | None = None,
    shuffle: bool = True,
    seed: int = 0,
    augment: Sequence[Any] = (),
    cache: str | Path | None = "auto",
    on_error: str = "raise",
    shard: tuple[int, int] = (0, 1),
    memory: int | str | None = None,
) -> Any:
    """Returns a `tf.data.Dataset` of image batches, or one for training and one for validation.

    Images are uint8 from 0 to 255 until they are on the device, a quarter of the bytes of float32: scale them in
    the model, with `keras.layers.Rescaling(1 / 255)` or the application's own preprocessing layer.

    Args:
        source: A folder with one sub-folder per class, a list of paths, a CSV file or a DataFrame (a column of
            paths, all others are labels; paths in a CSV are relative to it).
        labels: For each path a class name, a number, a float, a row of numbers, or a list of class names (several
            classes per image); None: from the folders or the table, or no labels.
        size: Height and width to resize to.
        batch_size: Images in a batch; the last one of an epoch may be smaller.
        channels: 3 for colour, 1 for grey.
        validation_split: The fraction of images for validation; None: one dataset.
        shuffle: Whether every epoch of training has its own random order.
        seed: What the order, the split and the augmentation are drawn from.
        augment: Keras preprocessing layers, functions of one NumPy image (with `rng=` if they take it), or
            Albumentations-style callables. They run after the cache, on the CPU, in training only.
        cache: "auto" keeps decoded images in RAM if they fit the budget, else on disk, else not at all;
            "memory", "disk", a folder for the disk cache, or None.
        on_error: What to do about a file that is no image: "raise", "skip" (leave it out and list it), or
            "report" (also warn). The list is `dataset.memfit.bad_files`.
        shard: `(index, workers)`: this worker reads every n-th image of each epoch's order, and no others.
        memory: The host memory that the pipeline may take, such as "4GiB"; None: half of what is free.

    Returns:
        The dataset, or `(training, validation)` with `validation_split`. Its attribute `memfit` is a `Pipeline`:
        its figures, bad files, and `resume(epoch, batch)`; `class_names` and `file_paths` are as in
        Keras.

    Raises:
        InvalidInput: If there are no images, labels do not match, or a setting is unknown.
    """
    if channels not in (1, 3):
        raise InvalidInput("channels is 1 (grey) or 3 (colour)", received=channels)
    if len(size) != 2 or not all(isinstance(n, int | np.integer) and n > 0 for n in size):
        raise InvalidInput("size is (height, width) in pixels", received=size)
    height, width = (int(n) for n in size)
    bad_files = BadFiles(on_error)
    files = find_files(source, labels)
    count = len(files.paths)
    parts = [np.arange(count)] if validation_split is None else split(count, validation_split, seed)
    orders = [
        Order(len(part), batch_size, shuffle and not number, seed, shard) for number, part in enumerate(parts)
    ]
    step = augmenter(augment, (height, width), channels) if augment else None
    sizing = size_up(memory, files.paths, (height, width), channels, batch_size, augmented=bool(augment))
    store, where = choose_store(cache, files.paths, (height, width, channels), sizing)
    loader = Loader(files.paths, (height, width), channels, sizing, store, bad_files)
    datasets = []
    for number, (part, order) in enumerate(zip(parts, orders, strict=True)):
        any_length = _dataset(files, part, loader, order, None if number else step)
        dataset = any_length
        if on_error == "raise":  # files left out can leave a batch empty, so that there are fewer
            dataset = any_length.apply(tf.data.experimental.assert_cardinality(order.batches))
        batch_bytes = Size(min(batch_size, order.samples) * height * width * channels)
        mixes = not number and mixes_samples(augment)
        dataset.memfit = Pipeline(
            order, batch_bytes, sizing.ahead, sizing.memory, any_length, where, bad_files, mixes=mixes
        )
        dataset.file_paths = [files.paths[index] for index in part]
        dataset.class_names = list(files.class_names)
        datasets.append(dataset)
    return datasets[0] if validation_split is None else tuple(datasets)


def _dataset(files: Files, part: Any, loader: Loader, order: Order, step: Step | None) -> Any:
    part = tf.constant(part, tf.int64)
    labels = None if files.labels is None else tf.constant(files.labels)
    sizing = loader.sizing

    def finish(begun: Iteration, batch: Tensor, chosen: Tensor, pixels: Tensor) -> Any:
        targets = None if labels is None else tf.gather(labels, chosen)
        if step is not None:
            pixels, targets = step(pixels, targets, _draw(order, begun, batch, tf.shape(pixels)[0]))
        return begun.epoch, batch, pixels if targets is None else (pixels, targets)

    def make_batches(begun: Iteration) -> Any:
        batches = loader.batches(begun.batch, tf.gather(part, begun.numbers), begun.size)
        return batches.map(
            lambda batch, chosen, pixels: finish(begun, batch, chosen, pixels),
            num_parallel_calls=sizing.augmenters if step is not None else None,
        )

    batches = per_iteration(order, make_batches)
    dataset = finish_iterations(batches, order, ahead=sizing.ahead, memory=sizing.memory)
    if loader.bad_files.policy == "raise":
        return dataset
    # Batches of which nothing is left go last, so that the end of an epoch is noted even if it was one of them.
    return dataset.filter(lambda *batch: tf.shape(tf.nest.flatten(batch)[0])[0] > 0)


def _draw(order: Order, begun: Iteration, batch: Tensor, images: Tensor) -> Draw:
    """The random numbers of a batch, or of one rank's share of it."""
    seed = tf.stack([tf.constant(order.seed % 2**31, tf.int32), tf.cast(begun.epoch, tf.int32)])
    seed = tf.random.experimental.stateless_fold_in(seed, tf.cast(batch, tf.int32))
    whole = tf.minimum(tf.constant(order.batch_size, tf.int64), order.samples - batch * order.batch_size)
    first, _ = split_in_graph(whole, begun.rank, begun.ranks)
    # Without ranks files may be left out, and numbers are drawn for the images that are there.
    samples = tf.where(begun.ranks > 1, tf.cast(whole, tf.int32), images)
    return Draw(seed, tf.cast(first, tf.int32), samples)
