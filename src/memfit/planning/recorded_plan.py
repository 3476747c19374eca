"""The plan of a job from recordings: with nothing changed where that fits, otherwise the best that levers offer."""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from itertools import count

from memfit.budgets.peaks import take_one_region
from memfit.estimation.estimate import Estimate
from memfit.estimation.recorder import Recorder
from memfit.planning.build_plan import build_plan
from memfit.planning.candidates import Candidate, choose_best
from memfit.planning.job import RECORDED_PARTS, Job
from memfit.planning.plan import Plan
from memfit.planning.recordings import Recordings
from memfit.planning.refusal import refuse
from memfit.planning.search import (
    list_recorded,
    record_tightest,
    search_largest_batch,
    search_recipe,
    try_unchanged,
)
from memfit.steps.recipe import Recipe

_progress = logging.getLogger("memfit.progress")


def make_plan(job: Job) -> Plan:
    """Makes the plan of a job from recordings.

    Raises:
        DoesNotFit: If no allowed plan fits; it says what would.
    """
    take_one_region()  # a trial of micro-batches would break an arena into regions that no large tensor fits
    with recorded_once(job) as record:
        return plan_unchanged(record()) or plan_changed(record())


@contextmanager
def recorded_once(job: Job) -> Iterator[Callable[[], Recordings]]:
    """Gives what records a job's step when it is first called, and returns the same recordings from then on."""
    with ExitStack() as open_ones:

        @cache
        def record() -> Recordings:
            return _record_stock(job, open_ones.enter_context(Recorder(job.model, job.data, job.device)))

        yield record


def plan_unchanged(recordings: Recordings) -> Plan | None:
    """Plans with nothing changed; None where that does not fit, or the largest batch is asked for."""
    batch_size = recordings.job.batch_size
    if batch_size == "max":
        return None
    chosen = try_unchanged(recordings, batch_size)
    return None if chosen is None else build_plan(recordings, batch_size, chosen)


def plan_changed(recordings: Recordings) -> Plan:
    """Plans with the levers.

    Raises:
        DoesNotFit: If no allowed plan fits; it says what would.
    """
    job = recordings.job
    _ = job.segment_choices  # which builds the model: levers ask a built one more
    chosen: Candidate | None
    if job.batch_size == "max":
        batch_size, chosen = search_largest_batch(recordings)
    else:
        batch_size = job.batch_size
        _progress.info("batch %d does not fit as it is: comparing levers", batch_size)
        chosen = search_recipe(recordings, batch_size)
        if chosen is None:
            record_tightest(recordings, batch_size)
            chosen = choose_best(list_recorded(recordings, batch_size), job.memory)
    if chosen is None:
        raise refuse(recordings)
    _progress.info("adding up what each change saves")
    return build_plan(recordings, batch_size, chosen)


def _record_stock(job: Job, recorder: Recorder) -> Recordings:
    """Records stock's step in the recorder's process, and looks for segments in this one meanwhile."""
    with ThreadPoolExecutor(1) as thread:
        recordings = thread.submit(_record_first, job, recorder)
        if job.model.built:  # otherwise that would build it, which a job that fits has no need of
            _ = job.segment_choices
        made = recordings.result()
    only = made.stock.estimate.made_from.fixed_batch
    if only is not None:
        made.job = job.with_only_batch(only)
    return made


def _record_first(job: Job, recorder: Recorder) -> Recordings:
    recordings = Recordings(job, partial(_record, job, recorder, count(1)))
    _progress.info("looking for activations to compute again")  # which has gone on meanwhile
    return recordings


def _record(
    job: Job, recorder: Recorder, numbers: Iterator[int], recipe: Recipe | None, batch_size: int
) -> Estimate:
    """Records the step of a recipe, as `steps.build` builds it for `fit` as well; of None, Keras's own."""
    number, name = next(numbers), _name_step(job, recipe, batch_size)
    _progress.info("recording step %d: %s", number, name)
    recorded = recorder.estimate(batch_size, job.build(recipe))
    _progress.info("replaying step %d in %s: %s", number, job.memory, name)
    return recorded


def _name_step(job: Job, recipe: Recipe | None, batch_size: int) -> str:
    """Says what is recorded, as it would be in `fit`: a step in micro-batches is recorded with a few of them."""
    if recipe is None:
        plain = "stock Keras's step" if job.is_fit else "the plain step"
        return f"{plain}, batch {batch_size}"
    if recipe == Recipe():
        return f"the guarded step, batch {batch_size}"
    host = ", inputs on the host" if recipe.inputs_on_host else ""
    if recipe.micro_batch is None:
        return f"{recipe}{host}, batch {batch_size}"
    return f"{replace(recipe, micro_batch=batch_size // RECORDED_PARTS)}{host}"
