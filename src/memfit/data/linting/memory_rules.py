"""Rules about bytes: what a pipeline holds in memory without need."""

import math
from collections.abc import Iterator

from memfit.data.linting.findings import Finding
from memfit.data.linting.view import View, decoded_before, decodes, times
from memfit.sizes import Size

# Buffers below this do not matter on any machine that trains.
_WORTH_SAYING = 64 * 2**20
# An element of this size is more than a record, a path or a row of numbers: it is a picture or the like.
_LARGE_ELEMENT = 16 * 2**10

# A tensor inside a pipeline is worth a finding from here on. Larger ones are not written into a graph for being
# linted either: that would take as much memory again, and fail above 2 GiB.
LARGE_TENSOR = 512 * 2**20


def shuffle_of_decoded(view: View) -> Iterator[Finding]:
    """A shuffle buffer full of decoded images instead of their paths."""
    for stage in view.of_kind("shuffle"):
        size = view.element_bytes(stage)
        buffer = stage.numbers[0] if stage.numbers else 0
        held = buffer if stage.count is None else min(buffer, stage.count)
        decoded = decoded_before(stage)
        if size is None and not decoded:
            continue
        large = size is None or (held * size >= _WORTH_SAYING and (decoded or size >= _LARGE_ELEMENT))
        if large and held > 1:
            yield Finding(
                "shuffle-of-images",
                stage.place,
                "The shuffle buffer holds whole decoded elements.",
                times(held, size),
                "Shuffle paths or indices, before the map that decodes: ds.shuffle(n).map(load, ...)",
            )


def cache_too_large(view: View) -> Iterator[Finding]:
    """A cache in RAM that RAM cannot hold."""
    for stage in view.of_kind("cache"):
        size = view.element_bytes(stage)
        if any(stage.texts) or size is None or stage.count in (None, math.inf):
            continue
        total = int(size * (stage.count or 0))
        if total > view.host:
            yield Finding(
                "cache-too-large",
                stage.place,
                f"The cache needs more memory than the host's {Size(view.host)}.",
                times(stage.count, size),
                'Cache on disk, cache("folder/name"), or before decoding, or use memfit.images(cache="auto")',
            )


def float_cache(view: View) -> Iterator[Finding]:
    """Images cached as floats that were bytes."""
    for stage in view.of_kind("cache"):
        images = [
            dtype
            for dtype, shape in zip(stage.types, stage.shapes, strict=False)
            if dtype in ("float32", "float64") and shape is not None and len(shape) >= 3
        ]
        if not images or not decoded_before(stage):
            continue
        size = view.element_bytes(stage)
        if size is not None and stage.count is not None and size * stage.count < _WORTH_SAYING:
            continue
        factor = 8 if "float64" in images else 4
        yield Finding(
            "float-cache",
            stage.place,
            f"Images are cached as {images[0]}; as uint8 they take 1/{factor} of it.",
            times(stage.count, size),
            "Cache uint8, tf.cast(tf.round(image), tf.uint8), and scale after the cache or in the model",
        )


def unbounded_prefetch(view: View) -> Iterator[Finding]:
    """A prefetch whose batches take a good part of the host."""
    for stage in view.of_kind("prefetch"):
        size = view.element_bytes(stage)
        buffer = stage.numbers[0] if stage.numbers else -1
        if buffer <= 1 or size is None:
            continue
        held = min(buffer, stage.count) if stage.count is not None else buffer
        if held * size > max(view.host // 20, _WORTH_SAYING):
            yield Finding(
                "large-prefetch",
                stage.place,
                f"prefetch({buffer}) counts elements, and these are large.",
                times(held, size),
                "prefetch(2) or tf.data.AUTOTUNE: more does not make an even pipeline faster",
            )


def array_in_graph(view: View) -> Iterator[Finding]:
    """A whole array turned into a tensor inside the pipeline."""
    tensors = [
        (view.source_bytes, "1 source"),
        *((stage.constant_bytes, stage.place) for stage in view.stages),
    ]
    for size, where in tensors:
        if size >= LARGE_TENSOR:
            yield Finding(
                "array-in-graph",
                where,
                "A whole array is a tensor inside the pipeline: a second copy of it.",
                f"{Size(size)} more than the array itself",
                "memfit.arrays(x, y, batch_size=...), which gathers each batch from the array itself",
            )


def decoded_larger_than_needed(view: View) -> Iterator[Finding]:
    """A cache of images at their full size, which are resized only behind it."""
    for stage in view.of_kind("cache"):
        if view.element_bytes(stage) is None and decoded_before(stage):
            later = [s for s in view.after(stage) if {"ResizeBilinear", "ResizeArea"} & s.ops()]
            if later and not any(decodes(s) for s in later):
                yield Finding(
                    "cache-before-resize",
                    stage.place,
                    "Images are cached at their full size and resized after the cache.",
                    times(stage.count, None, "images"),
                    "Resize before the cache, and cache uint8",
                )


RULES = (
    shuffle_of_decoded,
    cache_too_large,
    float_cache,
    unbounded_prefetch,
    array_in_graph,
    decoded_larger_than_needed,
)
