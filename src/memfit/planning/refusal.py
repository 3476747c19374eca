"""What is said when no allowed plan fits: the memory, the batch or the fidelity that would do."""

from memfit.estimation.margins import REPEATED
from memfit.planning.candidates import choose_best
from memfit.planning.does_not_fit import DoesNotFit
from memfit.planning.fidelity import Fidelity
from memfit.planning.largest_batch import find_largest_batch
from memfit.planning.recordings import Recordings
from memfit.planning.search import list_recorded
from memfit.sizes import Size


def refuse(recordings: Recordings) -> DoesNotFit:
    """Builds the error: the rule, what was received, and what would be accepted.

    Only recorded recipes are advised, so that the advice stands on what was seen.
    """
    job = recordings.job
    batch_size = 1 if job.batch_size == "max" else job.batch_size
    allowed = list_recorded(recordings, batch_size)
    smallest = Size(int(min(recordings.needed(c.recipe, batch_size) for c in allowed) * REPEATED))
    room = int(job.memory / REPEATED)
    largest = 0
    if job.batch_size != "max":
        largest = find_largest_batch(
            lambda size: choose_best(list_recorded(recordings, size), room) is not None, batch_size
        )
    farther = [c for c in recordings.candidates(batch_size, Fidelity.MODEL) if c.fidelity > job.allow]
    beyond = choose_best(farther, room)
    fixed = job.fixed_step if job.allow < Fidelity.PRECISION and not job.segment_choices[0] else None
    changes = f" with {job.allow} changes" if fixed is None else f", and its step cannot be changed: {fixed}"
    parts = [
        f"Batch {batch_size} does not fit into {job.memory}{changes}.",
        f"The smallest memory that would do is {smallest};",
        f"the largest batch that fits {job.memory} is {largest}."
        if largest
        else f"no batch fits {job.memory}.",
    ]
    if beyond is not None:
        parts.append(f'With allow="{beyond.fidelity}" this batch would fit.')
    return DoesNotFit(" ".join(parts), smallest, largest, None if beyond is None else beyond.fidelity)
