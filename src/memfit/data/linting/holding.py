"""What a tf.data pipeline holds in memory while it runs: shuffle buffers, caches, batches ahead, calls at work."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from memfit.data.linting.lint import look_at
from memfit.data.linting.stages import Stage
from memfit.data.linting.view import batch_size_at
from memfit.sizes import Size

# Elements that `prefetch(tf.data.AUTOTUNE)` has ready: it grows only where the consumer had to wait.
_TUNED = 2
# The numbers of a parallel interleave: datasets read at once, elements of each in a row, elements read ahead of
# each, datasets opened ahead, and calls at once. A graph has them as TensorFlow has chosen them.
_OF_INTERLEAVE = 5
# A batch that is made is there as its samples and as a whole.
_WHILE_BATCHED = 2
_PASSING = ("prefetch", "repeat", "shard", "shuffle", "skip", "take")


@dataclass(frozen=True)
class Held:
    """What a pipeline holds once its buffers are full.

    Attributes:
        fixed: Bytes that do not depend on the size of a batch.
        per_sample: Bytes of batches, for every sample of one.
        batch_size: Samples in a batch; None where the graph does not tell.
    """

    fixed: int
    per_sample: float
    batch_size: int | None


def hold(dataset: Any) -> Held | None:
    """Returns what a pipeline holds beside the batch that it has handed out; None where its graph does not tell.

    The arrays that it reads from are not counted: they are there before it runs.
    """
    view = look_at(dataset)
    if not view.stages:
        return None
    fixed, per_sample = 0.0, 0.0
    last = view.stages[-1]
    # TensorFlow reads ahead of what runs in parallel at the end, by a `prefetch` of its own (inject_prefetch.cc).
    injected = [(float(_TUNED), last)] if last.parallel else []
    for stage in view.stages:
        for elements, of in [*_held_at(stage), *(injected if stage is last else ())]:
            size, count = view.element_bytes(of), stage.count
            there = elements if count is None else min(elements, count)
            if size is None or there == math.inf:
                return None
            samples = batch_size_at(of)
            if samples is None:
                fixed += there * size
            else:
                per_sample += there * size / samples
    return Held(int(fixed), per_sample, batch_size_at(last))


def held_by(dataset: Any) -> Size | None:
    """Returns the bytes that a pipeline holds once its buffers are full; None where its graph does not tell.

    Example:
        >>> import tensorflow as tf
        >>> held_by(tf.data.Dataset.range(1000).shuffle(100))
        Size('800 B')
    """
    held = hold(dataset)
    return None if held is None else Size(held.fixed + int(held.per_sample * (held.batch_size or 0)))


def _held_at(stage: Stage) -> Iterator[tuple[float, Stage]]:
    """Yields how many elements of which stage are held at a stage."""
    if stage.kind == "cache" and not any(stage.texts):  # a cache with a name is a file
        yield math.inf, stage
    elif stage.kind == "shuffle" and not _hands_on_a_cache(stage):
        yield (stage.numbers[0] if stage.numbers else math.inf), stage
    elif stage.kind == "prefetch":
        buffer = stage.numbers[0] if stage.numbers else -1
        yield (_TUNED if buffer < 0 else buffer), stage
    elif stage.kind == "batch":
        yield _WHILE_BATCHED * _calls(stage, 1), stage
    elif stage.kind == "map":
        yield _calls(stage, -1), stage
    elif stage.kind == "interleave" and stage.parallel and len(stage.numbers) >= _OF_INTERLEAVE:
        cycle, _, ahead, opened, _ = stage.numbers[-_OF_INTERLEAVE:]
        yield (cycle + opened) * ahead, stage


def _calls(stage: Stage, place: int) -> int:
    """How many calls of a stage's function are at work; where TensorFlow chooses, as many as there are cores."""
    if not stage.parallel:
        return 1
    calls = stage.numbers[place] if stage.numbers[place:] else -1
    return _cores() if calls < 0 else calls


def _hands_on_a_cache(stage: Stage) -> bool:
    """Whether the elements of a stage are those of a cache in memory, which are not copied."""
    for before in stage.line():
        if before.kind == "cache":
            return not any(before.texts)
        if before.kind not in _PASSING:
            return False
    return False


def _cores() -> int:
    return len(os.sched_getaffinity(0))
