"""Making the plan of what was chosen: its figures, its levers, and its validation."""

from memfit.planning.candidates import Candidate, Figures
from memfit.planning.fidelity import Fidelity
from memfit.planning.fingerprint import fingerprint
from memfit.planning.job import Job
from memfit.planning.layer_names import layer_names
from memfit.planning.lever_list import levers
from memfit.planning.levers import micro_batches
from memfit.planning.plan import Plan
from memfit.planning.prospects import Prospects
from memfit.planning.recorded_steps import at
from memfit.sizes import Size


def made(prospects: Prospects, batch_size: int, chosen: Candidate) -> Plan:
    """Makes the plan of the candidate that was chosen for a batch."""
    job, steps = prospects.job, prospects.steps
    validation_batch = _validation_batch(prospects)
    size = chosen.micro_batch or batch_size
    filled, margin = steps.filled(chosen.way, size), steps.margin(chosen.way, size)
    return Plan(
        model=fingerprint(job.model),
        batch_size=batch_size,
        memory=job.memory,
        fidelity=chosen.fidelity,
        stock=Size(steps.stock.peak(batch_size) + prospects.waiting(batch_size)),
        predicted=Size(min(chosen.peak - margin + filled, job.memory)),
        margin=Size(max(0, margin - filled)),
        time=chosen.time,
        source=steps.stock.estimate.source,
        micro_batch=chosen.micro_batch,
        segments=chosen.segments,
        precision=chosen.precision,
        validation_batch=validation_batch,
        inputs_on_host=chosen.inputs_on_host,
        layer_names=() if chosen.segments is None else layer_names(job.model),
        levers=levers(job, batch_size, prospects.figures, chosen, validation_batch, prospects.no_segments),
    )


def clear_fit(job: Job, batch_size: int, bound: Size) -> Plan:
    """Makes the plan of a job that fits by far: nothing changes, and nothing had to be recorded to know it."""
    figures = Figures(lambda way, size: int(bound), lambda size: 0, 0, lambda size: 0, lambda size: 0.0)
    chosen = Candidate(Fidelity.EXACT, int(bound), 1.0)
    return Plan(
        model=fingerprint(job.model),
        batch_size=batch_size,
        memory=job.memory,
        fidelity=Fidelity.EXACT,
        stock=bound,
        predicted=bound,
        margin=Size(0),
        time=1.0,
        source="upper bound from the layers' shapes",
        levers=levers(job, batch_size, figures, chosen, None, None),
    )


def _validation_batch(prospects: Prospects) -> int | None:
    """The largest slices in which a validation batch fits; None where it fits whole."""
    whole, stock, memory = prospects.job.validation_batch_size, prospects.steps.stock, prospects.job.memory
    # A validation step takes less than a training step; it is recorded only where that does not settle it.
    if whole is None or stock.need(whole) + prospects.waiting(whole) <= memory:
        return None
    for size in (whole, *micro_batches.sizes(whole)):
        peak = at(stock.estimate.validate, size).needed + prospects.waiting(whole)
        if peak <= memory:
            return None if size == whole else size
    return 1
