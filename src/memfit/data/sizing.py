"""How much of everything: parallel calls, batches ahead and the cache, all inside one budget of host memory."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from memfit.budgets.budget import budget
from memfit.data.decoding import MOST_PIXELS, decoded_shape
from memfit.data.disk_cache import cache_folder, cache_limit, open_cache
from memfit.data.stores import MemoryStore, Store
from memfit.errors import InvalidInput
from memfit.sizes import Size

# Without a given budget a pipeline takes at most this share of the host's free memory: the training needs some.
_SHARE_OF_FREE = 0.5
# Batches ahead beyond these do not make an even pipeline faster, only larger.
_MOST_AHEAD = 4
_SHARE_AHEAD = 0.05
# A decoder holds the file, its output, and the float32 copy of what it resizes to at the same time.
_COPIES_IN_DECODER = 2
# Augmentation works in float32 (4 bytes for 1) with about three tensors alive at a time.
_COPIES_IN_AUGMENTATION = 12
# Files whose headers are looked at to know how large photos are here.
_SAMPLE = 32
_CACHES = ("auto", "memory", "disk")


@dataclass(frozen=True)
class Sizing:
    """What a pipeline may use.

    Attributes:
        memory: The budget of host memory for all of the pipeline.
        decoders: Images decoded at the same time.
        augmenters: Batches augmented at the same time.
        ahead: Batches prepared ahead of the training.
        working: The bytes those three take.
        most_pixels: The most that the decoder may put out for one image.
    """

    memory: Size
    decoders: int
    augmenters: int
    ahead: int
    working: Size
    most_pixels: int


def host_share(memory: int | str | None) -> Size:
    """Returns the budget a pipeline keeps to: as given, at most what the host or its cgroup has; else a share."""
    host = budget().host
    if memory is None:
        return Size(int(host.free * _SHARE_OF_FREE))
    return Size(min(Size(memory, of=host.total), host.total))


def workers() -> int:
    """Returns the CPUs that this process may run on."""
    return len(os.sched_getaffinity(0))


def batches_ahead(memory: int, batch_bytes: int) -> int:
    """Returns how many batches to prepare ahead: bounded in bytes, at least one."""
    return max(1, min(_MOST_AHEAD, int(memory * _SHARE_AHEAD) // max(batch_bytes, 1)))


def size_up(
    memory: int | str | None,
    paths: Sequence[str],
    size: tuple[int, int],
    channels: int,
    batch_size: int,
    *,
    augmented: bool,
) -> Sizing:
    """Divides the budget, from the sizes of the photos there really are."""
    share = host_share(memory)
    largest = _largest_decoded(paths, size, channels)
    batch_bytes = batch_size * math.prod(size) * channels
    image_floats = 4 * math.prod(size) * channels
    per_decoder = _COPIES_IN_DECODER * largest + image_floats
    decoders = max(1, min(workers(), share // 4 // max(per_decoder, 1)))
    per_augmenter = _COPIES_IN_AUGMENTATION * batch_bytes
    augmenters = max(1, min(workers(), share // 4 // max(per_augmenter, 1))) if augmented else 0
    ahead = batches_ahead(share, batch_bytes)
    # One batch is being filled and one is being trained on, besides those ahead.
    working = decoders * per_decoder + augmenters * per_augmenter + (ahead + 2) * batch_bytes
    # An image that is not in the sample may be larger, but one alone must not take half the budget.
    most_pixels = max(min(MOST_PIXELS, share // 2 // channels), 1)
    return Sizing(share, int(decoders), int(augmenters), ahead, Size(working), int(most_pixels))


def _largest_decoded(paths: Sequence[str], size: tuple[int, int], channels: int) -> int:
    """The most bytes that decoding puts out for one of a sample of the files; bad files do not count."""
    measure = tf.function(
        lambda path: decoded_shape(tf.io.read_file(path), size),
        input_signature=[tf.TensorSpec((), tf.string)],
        autograph=False,
    )
    largest = 0
    for number in np.unique(np.linspace(0, len(paths) - 1, _SAMPLE).astype(int)):
        try:
            in_file, decoded = (math.prod(map(int, shape)) for shape in measure(paths[number]))
        except tf.errors.OpError:
            continue
        if in_file <= MOST_PIXELS:
            largest = max(largest, decoded * channels)
    return largest


def choose_store(
    cache: str | Path | None, paths: Sequence[str], shape: tuple[int, ...], sizing: Sizing
) -> tuple[Store | None, str]:
    """Returns where to keep decoded images, and the reason in words.

    It is decided from their real number and size, the budget, and the room on disk.

    Raises:
        InvalidInput: If a way that was asked for by name has no room.
    """
    if cache is None:
        return None, "none"
    if isinstance(cache, str) and cache in _CACHES:
        folder = cache_folder()
    elif isinstance(cache, Path) or "/" in cache:
        folder, cache = Path(cache), "disk"
    else:
        raise InvalidInput(
            f"cache is {', '.join(map(repr, _CACHES))}, a folder, or None",
            received=cache,
            remedy='Or "./folder"',
        )
    total = Size(len(paths) * math.prod(shape))
    if cache != "disk":
        if total + sizing.working <= sizing.memory:
            return MemoryStore(len(paths), shape), f"in RAM, {total}, which fits"
        if cache == "memory":
            raise InvalidInput(
                f"{len(paths):,} decoded images take {total} besides {sizing.working} of working memory, "
                f"which must fit the pipeline's budget of {sizing.memory}",
                remedy='Pass cache="auto", a larger memory, or a smaller size',
            )
    # Everything besides the files that the pixels depend on: decoders change with TensorFlow.
    settings = {"shape": list(shape), "tensorflow": tf.__version__.rsplit(".", 1)[0]}
    store = open_cache(folder, paths, shape, settings)
    if store is not None:
        return store, f"on disk, {total} in {folder}"
    limit = Size(cache_limit(folder))
    if cache == "disk":
        raise InvalidInput(
            f"A disk cache of {total} must fit the {limit} that caches in {folder} may take",
            remedy="Set MEMFIT_CACHE_LIMIT, remove old ones with: memfit cache rm, or pass another folder",
        )
    return None, f"none: {total} fit neither RAM ({sizing.memory}) nor disk ({limit})"


def limit_tuning(dataset: Any, memory: int) -> Any:
    """Returns the dataset with tf.data's own tuning held to the budget and the order kept."""
    options = tf.data.Options()
    options.deterministic = True
    options.autotune.ram_budget = int(memory)
    options.autotune.cpu_budget = workers()
    # Nothing here is left for tf.data to rewrite, and looking takes 0.2 s at the start of every epoch.
    options.experimental_optimization.apply_default_optimizations = False
    return dataset.with_options(options)
