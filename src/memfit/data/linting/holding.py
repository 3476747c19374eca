"""What a tf.data pipeline holds in memory while it runs: shuffle buffers, caches, elements read ahead."""

import math
from typing import Any

from memfit.data.linting.lint import look_at
from memfit.data.linting.stages import Stage
from memfit.data.linting.view import View
from memfit.sizes import Size

# Elements that `prefetch(tf.data.AUTOTUNE)` has ready: it grows only where the consumer had to wait.
_TUNED = 2


def held_by(dataset: Any) -> Size | None:
    """Returns the bytes that a pipeline holds once its buffers are full; None where its graph does not tell.

    The arrays that it reads from are not counted: they are there before it runs.

    Example:
        >>> import tensorflow as tf
        >>> held_by(tf.data.Dataset.range(1000).shuffle(100))
        Size('800 B')
    """
    view = look_at(dataset)
    if not view.stages:
        return None
    held = [_of_stage(view, stage) for stage in view.stages]
    return None if None in held else Size(sum(filter(None, held)))


def _of_stage(view: View, stage: Stage) -> int | None:
    if stage.kind not in ("shuffle", "cache", "prefetch") or (stage.kind == "cache" and any(stage.texts)):
        return 0  # a cache with a name is a file
    size, count = view.element_bytes(stage), stage.count
    wanted = math.inf if stage.kind == "cache" else _buffer(stage)
    elements = min(wanted, math.inf if count is None else count)
    return None if size is None or elements == math.inf else int(elements * size)


def _buffer(stage: Stage) -> int:
    buffer = stage.numbers[0] if stage.numbers else -1
    return _TUNED if buffer < 0 else buffer
