"""Planning for batches of several shapes: a recipe for the worst, and a looser one for those that need less."""

import logging
from collections.abc import Callable
from dataclasses import replace

from memfit.data.shapes import BatchShape, Shapes, count_elements, covers
from memfit.estimation.estimate import Estimate
from memfit.estimation.recording.kept import size_of
from memfit.estimation.worst_batch import find_worst
from memfit.planning.does_not_fit import DoesNotFit
from memfit.planning.job import Job
from memfit.planning.plan import Ordinary, Plan
from memfit.sizes import Size
from memfit.steps.recipe import Recipe

_progress = logging.getLogger("memfit.progress")
# How many steps may be recorded to find out up to which shape batches fit as they are.
_TRIED = 4
# The ordinary batches are at least this share of all; otherwise they are as the worst.
_LEAST = 0.5
# The share that a plan of their own is made for where not even those fit as they are.
_MOST = 0.9

MakePlan = Callable[[Job], Plan]
MakeEstimate = Callable[[Job], Estimate]


def plan_for_shapes(job: Job, shapes: Shapes, make: MakePlan, estimate: MakeEstimate) -> Plan:
    """Makes the plan of a job whose batches have several shapes.

    Args:
        job: The job; what it says of the data and of a batch's samples is replaced by each shape's.
        make: Makes the plan of batches of one shape.
        estimate: Estimates stock's step for batches of one shape.
    """

    def of(shape: BatchShape, memory: int | None = None) -> Job:
        room = job.memory if memory is None else Size(memory)
        like = replace(job, data=shapes.like(shape), memory=room)
        return like if job.batch_size == "max" else replace(like, batch_size=shape[0][0])

    alone = len(shapes.largest()) == 1
    worst, _ = find_worst(shapes, lambda shape: 0 if alone else int(estimate(of(shape)).peak), int)
    tight = make(of(worst.shape))
    if not shapes.vary:
        return tight
    tight = replace(tight, worst=worst)
    if tight.changes_nothing or tight.recipe.changes or job.batch_size == "max":
        return tight
    # The tight step's accumulators, or buffers of gradients, stay while others run.
    room = job.memory - sum(map(size_of, job.model.trainable_variables))
    usual = _find_ordinary(shapes, worst.shape, lambda shape: of(shape, room), make, estimate)
    if usual is None:
        return tight
    shape, recipe, time = usual
    share = sum(seen.count for other, seen in shapes.seen.items() if covers(shape, other)) / shapes.batches
    ordinary = Ordinary(shape, replace(recipe, validation_batch=None), share)
    return replace(tight, ordinary=ordinary, time=share * time + (1 - share) * tight.time)


def _find_ordinary(
    shapes: Shapes, worst: BatchShape, of: Callable[[BatchShape], Job], make: MakePlan, estimate: MakeEstimate
) -> tuple[BatchShape, Recipe, float] | None:
    """Finds up to which shape batches fit as they are, or in a recipe of their own, and its time; None for none."""
    cuts = _list_cuts(shapes, worst)
    low, high = -1, len(cuts)
    for tried in range(_TRIED):
        if high - low <= 1:
            break
        middle = (low + high) // 2 if tried else high - 1  # mostly, only the worst stands out
        job = of(cuts[middle])
        _progress.info("checking whether batches of %s fit as they are", cuts[middle])
        if estimate(job).fits(job.memory):
            low = middle
        else:
            high = middle
    if low >= 0:
        return cuts[low], Recipe(), 1.0
    most = shapes.joined(_MOST)
    if covers(most, worst):
        return None
    try:
        loose = make(of(most))
    except DoesNotFit:
        return None
    return None if loose.recipe.changes else (most, loose.recipe, loose.time)


def _list_cuts(shapes: Shapes, worst: BatchShape) -> list[BatchShape]:
    """Lists shapes that cover more and more of the batches, from half of them to all but those like the worst."""
    shares, seen = [], 0
    for shape in sorted(shapes.seen, key=count_elements):
        seen += shapes.seen[shape].count
        shares.append(seen / shapes.batches)
    joins = [shapes.joined(share) for share in dict.fromkeys([_LEAST, *(s for s in shares if s > _LEAST)])]
    cuts = [join for join in dict.fromkeys(joins) if not covers(join, worst)]
    most = 2**_TRIED - 1
    return cuts if len(cuts) <= most else [cuts[round(i * (len(cuts) - 1) / (most - 1))] for i in range(most)]
