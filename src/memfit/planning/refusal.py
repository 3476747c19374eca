"""What is said when no allowed plan fits: the memory, the batch or the fidelity that would do."""

from dataclasses import replace

from memfit.estimation.margins import REPEATED
from memfit.planning.build_plan import build_plan, list_rows
from memfit.planning.candidates import Candidate, choose_best
from memfit.planning.does_not_fit import DoesNotFit
from memfit.planning.fidelity import Fidelity
from memfit.planning.levers.sharded_optimizer import ShardedOptimizer
from memfit.planning.plan import Plan
from memfit.planning.recordings import Recordings
from memfit.planning.search import find_largest_batch, list_recorded, record_tightest, search_beyond
from memfit.sizes import Size


def refuse(recordings: Recordings) -> DoesNotFit:
    """Builds the error: the rule, what was received, and what would be accepted.

    Only recorded recipes are advised, so that the advice stands on what was seen.
    """
    job = recordings.job
    batch_size = 1 if job.batch_size == "max" else job.batch_size
    if not list_recorded(recordings, batch_size):
        record_tightest(recordings, batch_size)
    allowed = list_recorded(recordings, batch_size)
    closest = min(allowed, key=lambda candidate: recordings.needed(candidate.recipe, batch_size))
    needed = recordings.needed(closest.recipe, batch_size)
    smallest = Size(int(needed * REPEATED) + job.beside).as_advised()
    room = int(job.memory / REPEATED)
    largest = 0
    one_size = recordings.stock.estimate.made_from.fixed_batch is not None
    if job.batch_size != "max" and not one_size:
        largest = find_largest_batch(
            lambda size: choose_best(list_recorded(recordings, size), room) is not None, batch_size
        )
    beyond = search_beyond(recordings, batch_size, room)
    fixed = job.fixed_step if job.allow < Fidelity.PRECISION and not job.segment_choices[0] else None
    changes = f' with allow="{job.allow}"' if fixed is None else f", and its step cannot be changed: {fixed}"
    each = f" on each of {job.ranks} ranks" if job.ranks > 1 else ""
    parts = [
        f"Batch {batch_size}{each} does not fit into {job.all_memory}{changes}.",
        *([f"{Size(job.beside)} of it are in use already."] if job.beside and job.ranks == 1 else []),
        f"The smallest memory that would be enough is {smallest}" + ("." if one_size else ";"),
    ]
    if not one_size:
        size = f"the largest batch that fits {job.all_memory} is {largest}{each}."
        parts.append(size if largest else f"no batch fits {job.all_memory}.")
    if beyond is not None:
        parts.append(f'With allow="{beyond.fidelity}" this batch would fit.')
    sharded = ShardedOptimizer()
    if (
        job.ranks > 1
        and not job.shard_optimizer
        and sharded.why_not(replace(job, shard_optimizer=True)) is None
    ):
        parts.append(f"With --shard-optimizer each rank would keep {sharded.count_saved(job)} less.")
    return DoesNotFit(
        " ".join(parts),
        smallest,
        largest,
        None if beyond is None else beyond.fidelity,
        _build_closest(recordings, batch_size, closest, needed),
    )


def _build_closest(recordings: Recordings, batch_size: int, closest: Candidate, needed: int) -> Plan:
    """Builds the plan that comes closest; its peak is not cut at the memory, as that of a plan that fits is."""
    plan = build_plan(recordings, batch_size, closest)
    levers = list_rows(recordings, plan.recipe, batch_size, "not enough, alone or with the others")
    return replace(plan, predicted=Size(max(plan.predicted, needed - plan.margin)), levers=levers)
