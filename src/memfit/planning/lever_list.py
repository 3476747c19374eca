"""Every lever of a plan, used or not, with its reason: what a printed plan lists."""

from dataclasses import replace

from memfit.planning.candidates import Candidate, Figures, Way
from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.levers import (
    allocator,
    host_inputs,
    inputs,
    micro_batches,
    mixed_precision,
    optimizer_state,
    smaller_network,
)
from memfit.planning.plan import Lever
from memfit.sizes import Size

_NOT_NEEDED = "not needed"


def levers(
    job: Job,
    batch_size: int,
    figures: Figures,
    chosen: Candidate,
    validation_batch: int | None,
    no_segments: str | None,
) -> tuple[Lever, ...]:
    """Lists the levers of a job for which `chosen` was chosen.

    Args:
        job: The job.
        batch_size: The batch chosen for it.
        figures: What is known of its steps.
        chosen: The settings.
        validation_batch: Samples in a slice of a validation batch; None for whole ones.
        no_segments: Why nothing can be rematerialised; None where it can, or where nobody asked.
    """
    advice = (
        optimizer_state.lever(job.model),
        inputs.lever(job.model, figures.inputs, batch_size),
        smaller_network.lever(job.model),
    )
    stock = chosen == Candidate(chosen.fidelity, chosen.peak, chosen.time)
    return (
        _rematerialisation(figures, chosen, batch_size, _NOT_NEEDED if stock else no_segments),
        _micro_batches(job, figures, chosen, batch_size, stock),
        _host_inputs(job, figures, chosen, batch_size, stock),
        _mixed_precision(job, figures, chosen, batch_size, stock),
        _validation(validation_batch),
        allocator.lever(),
        *(replace(lever, why=_NOT_NEEDED) if stock else lever for lever in advice),
    )


def _rematerialisation(figures: Figures, chosen: Candidate, batch_size: int, why_not: str | None) -> Lever:
    name = "rematerialisation"
    segments = chosen.segments
    if segments is None:
        why = why_not or "other levers are enough, and faster"
        return Lever(name, Fidelity.EXACT, used=False, why=why)
    size = chosen.micro_batch or batch_size
    saving = figures.need(replace(chosen.way, segments=None), size) - figures.need(chosen.way, size)
    return Lever(
        name,
        Fidelity.EXACT,
        used=True,
        setting=f"{len(segments.starts) + 1} segments"
        + (", large convolutions in parts of the batch" if segments.split_convolutions else ""),
        why="the least recomputation that fits",
        saving=Size(max(saving, 0)),
        cost=figures.recomputed(segments),
    )


def _micro_batches(job: Job, figures: Figures, chosen: Candidate, batch_size: int, stock: bool) -> Lever:
    fidelity, reason = micro_batches.fidelity(job.model)
    if chosen.micro_batch is None:
        why = _NOT_NEEDED if stock else micro_batches.why_not(job.model) or f"not needed ({reason})"
        if not stock and fidelity > job.allow:
            why = f'allow="{fidelity}" would be needed: {reason}'
        return Lever(micro_batches.NAME, fidelity, used=False, why=why)
    parts = -(-batch_size // chosen.micro_batch)
    saving = figures.need(Way(), batch_size) - figures.need(Way(None, True), chosen.micro_batch)
    return Lever(
        micro_batches.NAME,
        fidelity,
        used=True,
        setting=f"{parts} of {chosen.micro_batch}",
        why=reason,
        saving=Size(max(saving, 0)),
        cost=figures.fixed_time(batch_size) * (parts - 1),
    )


def _host_inputs(job: Job, figures: Figures, chosen: Candidate, batch_size: int, stock: bool) -> Lever:
    name, fidelity = host_inputs.NAME, host_inputs.FIDELITY
    if not chosen.inputs_on_host:
        why = _NOT_NEEDED if stock else host_inputs.why_not(job.model, job.data, job.device) or _NOT_NEEDED
        return Lever(name, fidelity, used=False, why=why)
    waiting = figures.waiting(batch_size) + figures.inputs * (batch_size - (chosen.micro_batch or batch_size))
    return Lever(
        name,
        fidelity,
        used=True,
        setting="read as needed",
        why="a step takes its samples from your arrays",
        saving=Size(waiting),
        cost=host_inputs.COST,
    )


def _mixed_precision(job: Job, figures: Figures, chosen: Candidate, batch_size: int, stock: bool) -> Lever:
    if chosen.precision is not None:
        return Lever(
            mixed_precision.NAME,
            mixed_precision.FIDELITY,
            used=True,
            setting=chosen.precision,
            why="nothing more faithful fits",
            saving=Size(int(mixed_precision.SAVED_OF_ACTIVATIONS * figures.activations(batch_size))),
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
