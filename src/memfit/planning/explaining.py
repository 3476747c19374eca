"""`memfit.explain`: what an error says, with the effect of each change as `estimate` and `plan` predict it."""

from dataclasses import replace
from typing import Any

from memfit.errors import in_one_line
from memfit.oom.explanation import Change, Explanation, Kind
from memfit.oom.reading import read_error
from memfit.sizes import Size


def explain(error: BaseException | str, model: Any = None, batch_size: int | None = None) -> Explanation:
    """Explains an out-of-memory error, or the log of a run that ended with one.

    It knows the texts of TensorFlow 2's allocators on GPU and CPU, of XLA, cuDNN, cuBLAS and CUDA, of NumPy, and
    those of the system when it ends a process. A text that it does not know is said to be unknown.

    Args:
        error: An exception, or text: a log, a traceback, or both.
        model: The compiled Keras model that was trained. With it and `batch_size` the changes come with
            predicted effects.
        batch_size: The batch it was trained with.

    Returns:
        An `Explanation`, whose `repr` is a few lines to read.

    Raises:
        InvalidInput: If `error` is neither, or `batch_size` is not positive.

    Example:
        >>> text = "OOM when allocating tensor with shape[64,112,112,64] and type float on "
        >>> text += "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc"
        >>> explain(text).asked.bytes
        Size('196 MiB')
    """
    explanation = read_error(error, batch_size)
    limit = explanation.limit
    if model is None or batch_size is None or limit is None:
        return explanation
    if explanation.ran_out not in ("device", "block"):
        return explanation
    changes = tuple(_predict(change, limit, model, batch_size) for change in explanation.changes)
    return replace(explanation, changes=changes)


def _predict(change: Change, limit: Size, model: Any, batch_size: int) -> Change:
    """Returns a change with its predicted effect on a model that has to fit into `limit`."""
    try:
        if change.kind is Kind.FIT:
            return replace(change, effect=_predict_fit(limit, model, batch_size))
        if change.kind is Kind.SMALLER_BATCH:
            return _predict_smaller_batch(change, limit, model, batch_size)
    except Exception as error:  # whatever a user's model raises while it is recorded: the advice still holds
        return replace(change, effect=f"not predicted: {in_one_line(error)}")
    return change


def _predict_fit(limit: Size, model: Any, batch_size: int) -> str:
    from memfit.planning.does_not_fit import DoesNotFit
    from memfit.planning.planning import plan

    try:
        planned = plan(model, batch_size=batch_size, memory=limit)
    except DoesNotFit as error:
        return f"predicted not to fit: {error}"
    return f"{planned.stock} becomes {planned.predicted} at {planned.time:.2f}x the time (predicted)"


def _predict_smaller_batch(change: Change, limit: Size, model: Any, batch_size: int) -> Change:
    from memfit.estimation.estimating import estimate

    estimated = estimate(model, batch_size=batch_size)
    largest = estimated.max_batch(limit)
    if not 0 < largest < batch_size:
        return replace(change, effect=f"{estimated.peak} at batch {batch_size} (predicted)")
    return replace(
        change,
        do=f"model.fit(..., batch_size={largest})",
        why="the largest batch that fits without other changes; different convergence",
        effect=f"{estimated.peak} becomes {estimated.at(largest).peak} (predicted)",
    )
