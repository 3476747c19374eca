"""What a change would do to the model at hand, as `estimate` and `plan` predict it."""

from dataclasses import replace
from typing import Any

from memfit.oom.remedies import Change
from memfit.oom.verdict import Verdict
from memfit.sizes import Size


def predicted(best: tuple[Change, ...], verdict: Verdict, model: Any, batch_size: int) -> tuple[Change, ...]:
    """Returns the changes with their predicted effect on a model, where it is known how much memory there is.

    Args:
        best: The changes.
        verdict: What they are against; its limit is what the model has to fit in.
        model: The compiled Keras model.
        batch_size: The batch it was trained with.
    """
    if verdict.limit is None or verdict.ran_out not in ("device", "block"):
        return best
    return tuple(_with_effect(change, verdict.limit, model, batch_size) for change in best)


def _with_effect(change: Change, limit: Size, model: Any, batch_size: int) -> Change:
    try:
        if change.do.startswith("memfit.fit("):
            return replace(change, effect=_planned(limit, model, batch_size))
        if change.do.startswith("model.fit(..., batch_size="):
            return _largest_batch(change, limit, model, batch_size)
    except (
        Exception
    ) as error:  # whatever a user's model raises while it is recorded: the change holds all the same
        reason = str(error).partition("\n")[0] or type(error).__name__
        return replace(change, effect=f"not predicted: {reason}")
    return change


def _planned(limit: Size, model: Any, batch_size: int) -> str:
    from memfit.planning.refusal import DoesNotFit
    from memfit.planning.search import search

    try:
        found = search(model, batch_size=batch_size, memory=limit)
    except DoesNotFit as error:
        return f"predicted not to do: {error}"
    return f"{found.stock} becomes {found.predicted} at {found.time:.2f}x the time (predicted)"


def _largest_batch(change: Change, limit: Size, model: Any, batch_size: int) -> Change:
    from memfit.estimation.estimating import estimate

    estimated = estimate(model, batch_size=batch_size)
    largest = estimated.max_batch(limit)
    if not 0 < largest < batch_size:
        return replace(change, effect=f"{estimated.peak} at batch {batch_size} (predicted)")
    return Change(
        f"model.fit(..., batch_size={largest})",
        "the largest that fits as it is, but another training",
        f"{estimated.peak} becomes {estimated.at(largest).peak} (predicted)",
    )
