"""Building the plan of the candidate that was chosen: its figures, its validation, and a row for every lever."""

from dataclasses import replace

from memfit.planning.candidates import Candidate
from memfit.planning.fidelity import Fidelity
from memfit.planning.fingerprint import fingerprint
from memfit.planning.job import Job
from memfit.planning.layer_names import layer_names
from memfit.planning.levers import levers_for
from memfit.planning.levers.lever import Lever
from memfit.planning.levers.micro_batches import list_sizes
from memfit.planning.plan import LeverRow, Plan
from memfit.planning.recordings import Recordings
from memfit.sizes import Size
from memfit.steps.recipe import Recipe


def build_plan(recordings: Recordings, batch_size: int, chosen: Candidate) -> Plan:
    """Builds the plan of the candidate that was chosen for a batch."""
    job, stock = recordings.job, recordings.stock
    predicted, margin = recordings.peak(chosen.recipe, batch_size)
    recipe = replace(chosen.recipe, validation_batch=_choose_validation_batch(recordings))
    return Plan(
        model=fingerprint(job.model),
        batch_size=batch_size,
        memory=job.memory,
        fidelity=chosen.fidelity,
        recipe=recipe,
        stock=Size(stock.peak(batch_size) + recordings.waiting(batch_size)),
        predicted=Size(predicted),
        margin=Size(margin),
        time=chosen.time,
        source=stock.estimate.source,
        layer_names=() if recipe.segments is None else layer_names(job.model),
        # Of none where none is needed, because asking some of them takes seconds.
        levers=() if recipe == Recipe() else list_rows(recordings, recipe, batch_size),
        timeline=recordings.timeline(recipe, batch_size),
    )


def build_stock_plan(job: Job, batch_size: int, bound: Size) -> Plan:
    """Builds the plan of a job that fits by far: nothing changes, and nothing had to be recorded to know it."""
    return Plan(
        model=fingerprint(job.model),
        batch_size=batch_size,
        memory=job.memory,
        fidelity=Fidelity.EXACT,
        recipe=Recipe(),
        stock=bound,
        predicted=bound,
        margin=Size(0),
        time=1.0,
        source="upper bound from the layers' shapes",
        is_bound=True,
    )


def list_rows(
    facts: Recordings,
    recipe: Recipe,
    batch_size: int,
    unused: str = "not needed: the levers above are enough, and more faithful or faster",
) -> tuple[LeverRow, ...]:
    """Says what became of each lever.

    Args:
        recipe: What was chosen.
        unused: Why a lever is not used that could be.
    """
    return tuple(_describe(lever, facts, recipe, batch_size, unused) for lever in levers_for(facts.job))


def _describe(lever: Lever, facts: Recordings, recipe: Recipe, batch_size: int, unused: str) -> LeverRow:
    job = facts.job
    fidelity = lever.fidelity(job)
    if not lever.is_used(recipe):
        why = _explain_unused(lever, facts, batch_size, unused)
        advised = lever.advise_saving(job, batch_size) if lever.why_not(job) is None else None
        return LeverRow(lever.name, fidelity, used=False, why=why, saving=advised)
    saving = Size(max(0, facts.saving(recipe, lever.undo(recipe), batch_size)))
    return LeverRow(
        lever.name,
        fidelity,
        used=True,
        setting=lever.describe(recipe, batch_size),
        why=lever.explain(job),
        saving=saving or None,
        cost=lever.predict_cost(facts, recipe, batch_size) or None,
    )


def _explain_unused(lever: Lever, facts: Recordings, batch_size: int, unused: str) -> str:
    job = facts.job
    if (reason := lever.why_not(job)) is not None:
        return reason
    offered = next(iter(lever.offer(job, Recipe(), batch_size)), None)
    if offered is None:  # it only advises
        return lever.explain(job)
    if (failure := facts.failure(offered)) is not None:
        return f"the step fails with it: {failure}"
    if lever.fidelity(job) > job.allow:
        return f'allow="{lever.fidelity(job)}" would be needed: {lever.explain(job)}'
    if facts.need(offered, batch_size) >= facts.need(Recipe(), batch_size):
        return "saves nothing in this training"
    return unused


def _choose_validation_batch(recordings: Recordings) -> int | None:
    """The largest slices in which a validation batch fits; None where it fits whole."""
    whole, stock, memory = recordings.job.validation_batch_size, recordings.stock, recordings.job.memory
    # A validation step takes less than a training step; it is recorded only where that does not settle it.
    if whole is None:
        return None
    room = memory - recordings.waiting(whole)
    if stock.need(whole, room) <= room:
        return None
    for size in (whole, *list_sizes(whole)):
        if stock.estimate.validate.sketch(size).prediction.needed <= room:
            return None if size == whole else size
    return 1
