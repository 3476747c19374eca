"""Predicting the peak memory of a training before it runs."""

import logging
import math
from dataclasses import replace
from typing import Any

from memfit.budgets.gpu_table import GPU, find_gpu
from memfit.errors import InvalidInput
from memfit.estimation.estimate import Estimate
from memfit.estimation.recorder import Recorder
from memfit.estimation.recording.step import Build
from memfit.estimation.worst_batch import batch_size_of, estimate_worst, look_where_needed
from memfit.progress import shows_progress

_progress = logging.getLogger("memfit.progress")


@shows_progress("estimating")
def estimate(
    model: Any,
    batch_size: Any = None,
    *more: Any,
    data: Any = None,
    device: str | None = None,
    build: Build | None = None,
) -> Estimate:
    """Predicts the peak memory of training a model, from a few small steps in another process.

    The model is copied, without its weights' values, into an isolated process that records every allocation of some
    steps at small batch sizes; the recording is replayed at the batch size asked about through a model of
    TensorFlow's allocator. Nothing of the caller's model, seeds or Keras settings changes.

    Args:
        model: A compiled Keras 3 model, or a function under `memfit.gradients`.
        batch_size: Samples in a training step; may be left out where `data` comes in batches. For a function its
            first argument, a tensor or a `tf.TensorSpec`.
        more: The further arguments of a function.
        data: What `fit` gets, (x, y) or a dataset, or an example of it. Only shapes and types are read; on a CPU
            the size of arrays counts, because `fit` copies them. A dataset whose batches have several shapes is
            looked through, for at most 10 s, and the estimate is that of its worst batch (`worst`).
        device: Name of a GPU the figures are for, such as "RTX 3060"; the GPU of this machine, if there is one,
            unless told. With memfit[gpu-compiler] installed its own compiler is asked, otherwise TensorFlow's XLA
            on a card that is here; a recording is the last resort. `source` says which it was, and why.
        build: Builds the training step to record from the copied model; None for the model's own. It must be
            picklable.

    Returns:
        The estimate; other batch sizes come from the same recording with `at`, unless they are far from it.

    Raises:
        InvalidInput: If the model is not compiled, a shape is unknown, the batch is no positive number, or the
            device is not known.
        ProcessDied: If the recording process was ended.

    Example:
        ```python
        est = memfit.estimate(model, batch_size=64)
        est.peak, est.max_batch("8GiB")
        ```
    """
    if hasattr(model, "estimate_call"):
        of_function: Estimate = model.estimate_call(batch_size, *more)
        return of_function
    if more:
        raise InvalidInput(
            "memfit.estimate takes one batch size for a model", received=f"{1 + len(more)} arguments"
        )
    card = find_gpu(device)
    shapes = look_where_needed(model, data, batch_size)
    if shapes is None:
        return _Recorded(model, data, card, build)(batch_size_of(data, batch_size))
    return estimate_worst(
        shapes, lambda example, size: _Recorded(model, example, card, build)(size), batch_size
    )


class _Recorded:
    """The recordings of a model's step, each for a batch size: one more where all are far from what is asked."""

    def __init__(self, model: Any, data: Any, device: GPU | None, build: Build | None) -> None:
        self._model, self._data, self._device, self._build = model, data, device, build
        self._known: dict[int, Estimate] = {}

    def __call__(self, batch_size: int) -> Estimate:
        near = [batch for batch, made in self._known.items() if made.speaks_for(batch_size)]
        if not near:
            _progress.info("a few small steps, batch %d", batch_size)
            with Recorder(self._model, self._data, self._device) as recorder:
                made = recorder.estimate(batch_size, self._build)
            self._known[batch_size] = made if made.compiled else replace(made, nearby=self)
            return self._known[batch_size]
        return self._known[min(near, key=lambda batch: abs(math.log(batch / batch_size)))]
