"""Predicting the peak memory of a training before it runs."""

from typing import Any

from memfit.estimation.estimate import Estimate
from memfit.estimation.recorder import Recorder
from memfit.estimation.recording.step import Build


def estimate(
    model: Any,
    batch_size: int,
    *,
    data: Any = None,
    device: str | None = None,
    build: Build | None = None,
) -> Estimate:
    """Predicts the peak memory of training a model, from a few small steps in another process.

    The model is copied, without its weights' values, into an isolated process that records every allocation of some
    steps at small batch sizes; the recording is replayed at the batch size asked about through a model of
    TensorFlow's allocator. Nothing of the caller's model, seeds or Keras settings changes.

    Args:
        model: A compiled Keras 3 model.
        batch_size: Samples in a training step.
        data: An example of what `fit` gets, (x, y) or a dataset, where the model does not say its shapes; only
            shapes and types are read.
        device: Name of a GPU the figures are for, such as "RTX 3060". With memfit[gpu-compiler] installed its own
            compiler is asked instead of a recording; `source` says which it was, and why.
        build: Builds the training step to record from the copied model; None for the model's own. It must be
            picklable.

    Returns:
        The estimate; other batch sizes come from the same recording with `at`.

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
    with Recorder(model, data, device) as recorder:
        return recorder.estimate(batch_size, build)
