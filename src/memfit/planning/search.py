"""`search`: the most faithful changes that make a job fit, and of those the fastest, without trial runs."""

import math
from typing import Any, Literal

from memfit.budgets.budget import budget
from memfit.budgets.gpu_table import gpu
from memfit.errors import InvalidInput
from memfit.planning.bound import upper_bound
from memfit.planning.candidates import Candidate, Way, best
from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.largest_batch import largest_batch
from memfit.planning.levers.micro_batches import custom_step
from memfit.planning.made_plans import clear_fit, made
from memfit.planning.plan import Plan
from memfit.planning.prospects import Prospects
from memfit.planning.recorded_steps import Recorder
from memfit.planning.refusal import refusal
from memfit.sizes import Size

# How many ways of computing a step are recorded at most before the search gives up on recording more.
_RECORDINGS = 3
# How much larger a batch has to promise to be for one more recording: predictions are no finer.
_WORTH_RECORDING = 1.05
# How much more a second recording of the same step may show: threads run its ops in another order, and gaps fall
# otherwise. With 1.03 the test of it failed once on a busy machine; at which of its claims was not seen.
_REPEATED = 1.05


def search(
    model: Any,
    batch_size: int | Literal["max"],
    memory: int | str | None = None,
    allow: str = "near",
    *,
    data: Any = None,
    validation_batch_size: int | None = None,
    recorder: Recorder | None = None,
    device: str | None = None,
) -> Plan:
    """Searches the plan; `memfit.plan` is this with the recorder of the training room.

    What a way of computing the step saves is first taken from a prediction, which knows the ops but not the
    allocator; the step chosen is then recorded, and the search goes on with what that showed, so that the plan's
    peak is always one that a recording stands behind.

    Args:
        model: A compiled Keras model.
        batch_size: Samples in one optimizer update, or "max" for as many as fit.
        memory: What the job may take on its device, such as "8GiB" or "80%"; None for what is free there.
        allow: The farthest that the plan may go: "exact", "near", "precision" or "model".
        data: An example of the training data (or the dataset), where the model does not tell its inputs.
        validation_batch_size: Samples in a validation batch; None where there is no validation.
        recorder: Estimates a way of computing the step by recording it; None to trust the predictions.
        device: A GPU to plan for, whose compiler is asked where it is installed; None for this machine.

    Returns:
        The plan; print it, or give it to `memfit.fit(..., plan=plan)`.

    Raises:
        DoesNotFit: If no allowed plan fits; it says what would.
        InvalidInput: If an argument is none, or the memory is less than the weights alone take.
    """
    allowed = Fidelity.read(allow)
    if not getattr(model, "compiled", False):
        raise InvalidInput(
            "A plan is made for a compiled model: the optimizer and the loss take memory too",
            received=type(model).__name__,
            remedy="Call model.compile(...) first",
        )
    if batch_size != "max" and (
        isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1
    ):
        raise InvalidInput('`batch_size` is a whole number of at least 1, or "max"', received=batch_size)
    available = gpu(device).usable if device and memory is None else _memory(memory)
    _check_weights(model, available)
    job = Job(model, batch_size, available, allowed, data, validation_batch_size, device)
    if batch_size != "max" and device is None:
        bound = upper_bound(model, max(batch_size, validation_batch_size or 1))
        if bound is not None and bound <= available:
            return clear_fit(job, batch_size, bound)
    return _searched(job, recorder)


def _searched(job: Job, recorder: Recorder | None) -> Plan:
    prospects = Prospects(job, recorder)
    if job.batch_size != "max":
        stock = prospects.candidates(job.batch_size, Fidelity.EXACT)[0]
        if stock.peak <= job.memory:
            return made(prospects, job.batch_size, stock)
    prospects.find_segments()
    batch_size, chosen = _choice(prospects)
    recorded = 0
    for _ in range(_RECORDINGS):
        if chosen is None or not prospects.can_record(chosen.way):
            break
        if job.batch_size == "max" and batch_size < _WORTH_RECORDING * recorded:
            break
        prospects.record(chosen.way, chosen.micro_batch or batch_size)
        recorded, _ = _choice(prospects, recorded_only=True)
        batch_size, chosen = _choice(prospects)
    # Enough has been recorded: only what a recording stands behind is left to choose from.
    batch_size, chosen = _choice(prospects, recorded_only=True)
    last = prospects.last_resort if job.batch_size == "max" else None
    if chosen is not None and chosen.micro_batch is None and last is not None:
        prospects.record(last, batch_size)
        batch_size, chosen = _choice(prospects, recorded_only=True)
    if chosen is None:
        # Nothing seems to fit: the way that takes least has to show whether that is so.
        prospects.record(*_least(prospects))
        batch_size, chosen = _choice(prospects, recorded_only=True)
    # Sizes between those replayed were taken from a line; the one chosen is replayed itself.
    looked_at = None
    while chosen is not None and chosen.way in prospects.steps:
        size = chosen.micro_batch or batch_size
        if looked_at == (chosen.way, size):
            break
        looked_at = (chosen.way, size)
        prospects.steps.look_at(chosen.way, size)
        batch_size, chosen = _choice(prospects, recorded_only=True, at_most=batch_size)
    if chosen is None:
        raise _refused(prospects)
    return made(prospects, batch_size, chosen)


def _choice(
    prospects: Prospects, *, recorded_only: bool = False, at_most: int | None = None
) -> tuple[int, Candidate | None]:
    """The batch and the best candidate for it, as far as is known by now."""

    def found(size: int) -> Candidate | None:
        return prospects.best(size, recorded_only=recorded_only)

    asked = prospects.job.batch_size
    batch_size = asked if asked != "max" else largest_batch(lambda size: found(size) is not None, at_most)
    return batch_size, found(batch_size) if batch_size else None


def _least(prospects: Prospects) -> tuple[Way, int]:
    """The allowed way that takes least, and the samples that then pass at once."""
    job = prospects.job
    batch_size = 1 if job.batch_size == "max" else job.batch_size
    if (last := prospects.last_resort) is not None:
        return last, batch_size
    least = min(prospects.candidates(batch_size, job.allow), key=lambda candidate: candidate.peak)
    return least.way, least.micro_batch or batch_size


def _refused(prospects: Prospects) -> Exception:
    job = prospects.job
    batch_size = 1 if job.batch_size == "max" else job.batch_size
    found = prospects.candidates(batch_size)
    allowed = [candidate for candidate in found if candidate.fidelity <= job.allow]
    recorded = [candidate for candidate in allowed if not prospects.can_record(candidate.way)]
    smallest = min(candidate.peak for candidate in recorded)
    # What is advised must be accepted, and the next recording of the same step shows a little more or less.
    farther = [candidate for candidate in found if candidate.fidelity > job.allow]
    beyond = best(farther, int(job.memory / _REPEATED), Fidelity.MODEL)
    return refusal(
        batch_size,
        job.memory,
        job.allow,
        Size(int(smallest * _REPEATED)),
        0 if job.batch_size == "max" else _largest_accepted(prospects),
        None if beyond is None else beyond.fidelity,
        custom_step(job.model) if job.allow < Fidelity.PRECISION else None,
    )


def _largest_accepted(prospects: Prospects) -> int:
    room = int(prospects.job.memory / _REPEATED)
    return largest_batch(lambda size: prospects.best(size, memory=room, recorded_only=True) is not None)


def _memory(memory: int | str | None) -> Size:
    device = budget().device
    return device.free if memory is None else Size(memory, of=device.total)


def _check_weights(model: Any, memory: Size) -> None:
    weights = Size(4 * sum(math.prod(weight.shape) for weight in model.weights))
    if weights > memory:
        raise InvalidInput(
            f"The weights alone take {weights}, and no plan can make them smaller",
            received=f"memory={memory}",
            remedy="Give more memory, or use a smaller network",
        )
