"""Every lever of a plan, used or not, with its reason: what a printed plan lists."""

from dataclasses import replace

from memfit.budgets.size import Size
from memfit.planning import (
    allocator,
    inputs,
    micro_batches,
    mixed_precision,
    optimizer_state,
    smaller_network,
)
from memfit.planning.candidates import Candidate, Figures
from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.plan import Lever

_NOT_NEEDED = "not needed"


def levers(job: Job, figures: Figures, chosen: Candidate, validation_batch: int | None) -> tuple[Lever, ...]:
    """Lists the levers of a job for which `chosen` was chosen."""
    advice = (
        optimizer_state.lever(job.model),
        inputs.lever(job.model, figures.inputs, job.batch_size),
        smaller_network.lever(job.model),
    )
    stock = chosen.peak <= job.memory and chosen == replace(
        chosen, micro_batch=None, segments=None, precision=None
    )
    return (
        _rematerialisation(job, figures, chosen, stock),
        _micro_batches(job, figures, chosen, stock),
        _mixed_precision(job, figures, chosen, stock),
        _validation(validation_batch),
        allocator.lever(),
        *(replace(lever, why=_NOT_NEEDED) if stock else lever for lever in advice),
    )


def _rematerialisation(job: Job, figures: Figures, chosen: Candidate, stock: bool) -> Lever:
    name = "rematerialisation"
    if chosen.segments is None:
        why = _NOT_NEEDED if stock else job.no_segments or "another lever is enough, and faster"
        return Lever(name, Fidelity.EXACT, used=False, why=why)
    segments = chosen.segments
    size = chosen.micro_batch or job.batch_size
    return Lever(
        name,
        Fidelity.EXACT,
        used=True,
        setting=f"{len(segments.starts) + 1} segments",
        why="the least recomputation that fits",
        saving=Size(max(figures.saved(segments, size), 0)),
        cost=figures.recomputed(segments),
    )


def _micro_batches(job: Job, figures: Figures, chosen: Candidate, stock: bool) -> Lever:
    fidelity, reason = micro_batches.fidelity(job.model)
    if chosen.micro_batch is None:
        why = _NOT_NEEDED if stock else micro_batches.why_not(job.model) or f"not needed ({reason})"
        if not stock and fidelity > job.allow:
            why = f'allow="{fidelity}" would be needed: {reason}'
        return Lever(micro_batches.NAME, fidelity, used=False, why=why)
    parts = -(-job.batch_size // chosen.micro_batch)
    saving = figures.peak(job.batch_size) - figures.peak(chosen.micro_batch) - figures.gradients
    return Lever(
        micro_batches.NAME,
        fidelity,
        used=True,
        setting=f"{parts} of {chosen.micro_batch}",
        why=reason,
        saving=Size(max(saving, 0)),
        cost=figures.fixed_time * (parts - 1),
    )


def _mixed_precision(job: Job, figures: Figures, chosen: Candidate, stock: bool) -> Lever:
    if chosen.precision is not None:
        return Lever(
            mixed_precision.NAME,
            mixed_precision.FIDELITY,
            used=True,
            setting=chosen.precision,
            why="nothing more faithful fits",
            saving=Size(int(mixed_precision.SAVED_OF_ACTIVATIONS * figures.activations(job.batch_size))),
        )
    why = _NOT_NEEDED if stock else mixed_precision.why_not(job.model)
    if why is None:
        allowed = job.allow >= mixed_precision.FIDELITY
        why = (
            "something more faithful fits"
            if allowed
            else f'allow="{mixed_precision.FIDELITY}" would be needed'
        )
    return Lever(mixed_precision.NAME, mixed_precision.FIDELITY, used=False, why=why)


def _validation(validation_batch: int | None) -> Lever:
    name = "smaller validation batches"
    if validation_batch is None:
        return Lever(name, Fidelity.EXACT, used=False, why="not needed")
    setting = f"slices of {validation_batch}"
    return Lever(
        name, Fidelity.EXACT, used=True, setting=setting, why="a whole validation batch would not fit"
    )
