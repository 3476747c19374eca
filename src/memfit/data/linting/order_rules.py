"""Rules about the order of stages: what is frozen, mixed up, shared or cut short without being meant to."""

import math
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from memfit.compat.tf_datasets import RANDOM_OPS
from memfit.data.linting.findings import Finding
from memfit.data.linting.stages import Stage
from memfit.data.linting.view import View, times


def random_before_cache(view: View) -> Iterator[Finding]:
    """Augmentation that the cache freezes."""
    for cache in view.of_kind("cache"):
        for stage in cache.upstream():
            draws = any(op in RANDOM_OPS or op.startswith("StatelessRandom") for op in stage.ops())
            if draws and stage.kind in ("map", "flat_map", "interleave", "batch"):
                yield Finding(
                    "random-before-cache",
                    stage.place,
                    "Random changes are made before the cache, so every epoch sees the first epoch's again.",
                    "all of the augmentation after the first epoch",
                    f"Move this stage after the cache (stage {cache.place})",
                )


def shuffle_before_cache(view: View) -> Iterator[Finding]:
    """A shuffle whose order the cache freezes."""
    for cache in view.of_kind("cache"):
        if any(stage.kind == "shuffle" for stage in view.after(cache)):
            continue
        for stage in cache.upstream():
            if stage.kind == "shuffle" and stage.reshuffles and stage.numbers[:1] != (1,):
                yield Finding(
                    "shuffle-before-cache",
                    stage.place,
                    "The cache keeps the first epoch's order, so later epochs are not shuffled.",
                    "the shuffling of all epochs but the first",
                    f"Shuffle after the cache (stage {cache.place})",
                )


def cache_of_repeat(view: View) -> Iterator[Finding]:
    """A cache behind a repeat: it grows with every epoch, or never ends."""
    for cache in view.of_kind("cache"):
        for stage in cache.line():
            if stage.kind == "repeat" and stage.numbers and stage.numbers[0] not in (0, 1):
                endless = cache.count == math.inf or stage.numbers[0] < 0
                size = view.element_bytes(cache)
                yield Finding(
                    "cache-after-repeat",
                    cache.place,
                    "The cache comes after a repeat, so it keeps every epoch again"
                    + (" forever." if endless else "."),
                    "memory that grows without limit" if endless else times(cache.count, size),
                    "ds.cache().repeat(...)",
                )


def cache_cut_short(view: View) -> Iterator[Finding]:
    """A cache that is never read to its end, and is therefore thrown away."""
    for cache in view.of_kind("cache"):
        for stage in view.after(cache):
            if stage.kind != "take" or not stage.numbers or stage.numbers[0] < 0:
                continue
            if any(
                s.kind in ("repeat", "shuffle", "batch") for s in view.after(cache) if s in stage.upstream()
            ):
                continue
            if cache.count is None or stage.numbers[0] < cache.count:
                yield Finding(
                    "cache-cut-short",
                    cache.place,
                    f"take({stage.numbers[0]}) ends each iteration before the cache is complete, so it is dropped.",
                    "the whole use of the cache: everything is computed again in every epoch",
                    "ds.take(n).cache()",
                )


def repeat_before_shuffle(view: View) -> Iterator[Finding]:
    """Epochs that run into one another."""
    for shuffle in view.of_kind("shuffle"):
        for stage in shuffle.line():
            if stage.kind == "repeat" and stage.numbers and stage.numbers[0] not in (0, 1):
                yield Finding(
                    "repeat-before-shuffle",
                    shuffle.place,
                    "The shuffle comes after the repeat: some samples come twice before others come once.",
                    "the order of the samples, and statistics per epoch",
                    "ds.shuffle(n).repeat(...)",
                )


def shared_cache_file(view: View) -> Iterator[Finding]:
    """One cache file for two stages or two datasets, or one that a killed process left half-written."""
    used = set(view.caches_of_others)
    for cache in view.of_kind("cache"):
        for name in filter(None, cache.texts):
            if name in used:
                yield Finding(
                    "shared-cache-file",
                    cache.place,
                    f"The cache file {name} is used twice: the second user gets the first one's data, or an error.",
                    "the data itself",
                    "Give each dataset its own file name",
                )
            used.add(name)
            if any(Path(name).parent.glob(Path(name).name + "*.lockfile")):
                yield Finding(
                    "half-written-cache",
                    cache.place,
                    f"{name} has a lock file: another process writes it, or one was ended while it did.",
                    "the run: TensorFlow stops with an error when it reaches the cache",
                    f"If nothing is writing it, remove {name}*",
                )


def few_files_to_shard(view: View) -> Iterator[Finding]:
    """Sharding by file with fewer files than workers."""
    policy = view.options.experimental_distribute.auto_shard_policy
    if policy != tf.data.experimental.AutoShardPolicy.FILE:
        return
    for stage in view.stages:
        files = stage.files if stage.files is not None else _listed_files(stage)
        if files is not None and files < view.workers:
            yield Finding(
                "too-few-files",
                stage.place,
                f"FILE sharding gives each of {view.workers} workers its own files, and there are {files}.",
                f"{view.workers - files} of {view.workers} workers get no data, and stop the others",
                "AutoShardPolicy.DATA, or write at least as many files as workers",
            )


def service_without_order(view: View) -> Iterator[Finding]:
    """tf.data service, which promises neither an order nor every sample."""
    for stage in view.stages:
        if stage.op.startswith("DataServiceDataset"):
            yield Finding(
                "service-without-order",
                stage.place,
                "tf.data service hands elements out in another order in every run, and a worker that dies takes "
                "its own with it (seen: 2,997 of 3,000 elements, then a hang).",
                "exact resuming and repeating: a restart goes back to the beginning of the epoch",
                "Prepare the data in this process where results have to be repeated: memfit.images, memfit.arrays",
            )


def _listed_files(stage: Stage) -> int | None:
    """Files that an interleave opens one by one: as many as there are names coming in."""
    inner = stage.inner
    while inner is not None and inner.inputs:
        inner = inner.inputs[0]
    if inner is None or not inner.op.startswith(("TextLine", "TFRecord", "FixedLengthRecord")):
        return None
    count = stage.inputs[0].count if stage.inputs else None
    return int(count) if count not in (None, math.inf) else None


RULES = (
    random_before_cache,
    shuffle_before_cache,
    cache_of_repeat,
    cache_cut_short,
    repeat_before_shuffle,
    shared_cache_file,
    few_files_to_shard,
    service_without_order,
)
