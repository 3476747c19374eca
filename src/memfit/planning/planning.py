"""`plan`: what to change so that a training fits."""

import logging
import math
import time
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from memfit.budgets.budget import budget
from memfit.budgets.gpu_table import find_gpu
from memfit.budgets.memory import Kind
from memfit.budgets.peaks import take_one_region
from memfit.compat import keras_layers, keras_training
from memfit.errors import InvalidInput, check_count
from memfit.estimation.cache import is_on, remembered
from memfit.estimation.estimate import Estimate, check_batch
from memfit.estimation.fingerprint import fingerprint
from memfit.estimation.margins import ROUNDED
from memfit.estimation.optimizers import optimizers_of
from memfit.estimation.recorder import Recorder
from memfit.estimation.recording.kept import size_of
from memfit.estimation.recording.specs import fixed_batch, spec_of
from memfit.estimation.waiting import waiting_of
from memfit.estimation.worst_batch import batch_size_of, look_where_needed
from memfit.planning.bound import sample_bytes, upper_bound
from memfit.planning.build_plan import build_stock_plan
from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.levers import levers_for
from memfit.planning.plan import Plan
from memfit.planning.recorded_plan import plan_changed, plan_unchanged, recorded_once
from memfit.planning.varying_shapes import plan_for_shapes
from memfit.progress import shows_progress
from memfit.sizes import Size
from memfit.steps.gradients import LEAST_PACK

# Ranks add up gradients one after the other, in their own places: measured were 8 MiB beside gradients of 4 MiB
# each (2 ranks, TensorFlow's ring on the CPU; docs/scaling.md). What NCCL takes on a GPU was not measured.
_OF_LARGEST = 2.0
_MIB = 2**20
_progress = logging.getLogger("memfit.progress")


@shows_progress("planning")
def plan(
    model: Any,
    batch_size: int | Literal["max"] | None = None,
    memory: int | str | None = None,
    allow: str = "near",
    *,
    data: Any = None,
    validation_batch_size: int | None = None,
    device: str | None = None,
    ranks: int = 1,
    shard_optimizer: bool = False,
) -> Plan:
    """Chooses what to change so that a training fits into the memory.

    The most faithful plan that fits is taken, and of equally faithful ones the fastest. It is found from
    recordings of a few small steps in another process (or, for jobs that clearly fit, from the layers' shapes
    alone); nothing of the model changes.

    Args:
        model: A compiled Keras model.
        batch_size: Samples in one optimizer update, or "max" for as many as fit; may be left out where `data` comes
            in batches.
        memory: What the job may take on its device, such as "8GiB" or "80%"; None for what is free there.
        allow: The farthest that the plan may go: "exact", "near", "precision" or "model".
        data: An example of the training data (or the dataset), where the model does not tell its inputs. A dataset
            whose batches have several shapes is looked through, for at most 10 s: the plan is for its worst batch,
            and smaller ones are computed as usual where they fit.
        validation_batch_size: Samples in a validation batch; None where there is no validation.
        device: A GPU to plan for, such as "RTX 4090", which need not be there; the GPU of this machine, if there is
            one, unless told. With memfit[gpu-compiler] installed its own compiler's figures are used. Its memory is
            taken where `memory` is None.
        ranks: How many processes train together, each on its own device. Batches are those of all of them;
            the plan is for the largest part of one, and counts what adding up the gradients takes.
        shard_optimizer: Whether each of them may keep a part of the optimizer's state, where that is needed.

    Returns:
        The plan; print it, or give it to `memfit.fit(..., plan=plan)`.

    Raises:
        DoesNotFit: If no allowed plan fits; it says what would.
        InvalidInput: If an argument is invalid, or the memory is less than the weights alone take.
    """
    check_count("`ranks` is a number of processes, at least 1", ranks)
    shapes = look_where_needed(model, data, batch_size)
    if batch_size is None:
        batch_size = shapes.largest()[0][0][0] if shapes is not None else batch_size_of(data, None)
    _check(model, batch_size)
    if validation_batch_size is not None:
        validation_batch_size = -(-validation_batch_size // ranks)
    card = find_gpu(device)
    available = card.usable if card and device and memory is None else read_memory(memory)
    beside = Size(0) if device is not None else measure_beside(model, available)
    _check_weights(model, Size(max(0, available - beside)))
    exchange = exchange_bytes(model) if ranks > 1 else Size(0)
    job = Job(
        model,
        _share_of_rank(model, batch_size, ranks),
        Size(available - exchange - beside),
        Fidelity.read(allow),
        data,
        validation_batch_size,
        card,
        ranks,
        shard_optimizer,
        exchange + beside,
    )
    with keras_training.knowing_if_eager(model):
        if shapes is None:
            made = _plan_one(job, bounded=device is None)
        else:
            made = plan_for_shapes(job, shapes, partial(_plan_one, bounded=device is None), _estimate_stock)
    stock, predicted = Size(made.stock + job.beside), Size(made.predicted + job.beside)
    source = f"{made.source}; and {beside} that are in use already" if beside else made.source
    return replace(made, memory=available, stock=stock, predicted=predicted, ranks=ranks, source=source)


def exchange_bytes(model: Any) -> Size:
    """Returns what the largest gradient takes while ranks add it up; all others stay where they are."""
    return Size(round(_OF_LARGEST * max(LEAST_PACK * 2, *map(size_of, model.trainable_variables), 0)))


def _share_of_rank(model: Any, batch_size: int | Literal["max"], ranks: int) -> int | Literal["max"]:
    """Returns the largest part of a batch that a rank computes."""
    only = fixed_batch(model)
    if batch_size == "max":
        return only or "max"
    share = -(-batch_size // ranks)
    check_batch(only, share)
    return share


def _estimate_stock(job: Job) -> Estimate:
    with Recorder(job.model, job.data, job.device) as recorder:
        return recorder.estimate(job.reference_batch)


def _plan_one(job: Job, *, bounded: bool) -> Plan:
    """Plans for batches of one shape; jobs that clearly fit by their bound alone, if that may be asked."""
    model, batch_size, available = job.model, job.batch_size, job.memory
    if batch_size != "max" and bounded:
        bound = _bound(job, max(batch_size, job.validation_batch_size or 1))
        if bound is not None and bound <= available:
            return build_stock_plan(job, batch_size, bound)
    take_one_region()  # a trial of micro-batches would break an arena into regions that no large tensor fits
    key = _key(job)
    spared = "save the plan, and give it as plan= next time" if key is None else "kept for the next time"
    _progress.info("looking for a plan made before", extra={"next_time": spared})
    about = f"plan, batch {batch_size}, {available}: {model.name}"
    with recorded_once(job) as record:
        unchanged, when = remembered(key, lambda: plan_unchanged(record()), about=about)
        if unchanged is not None:
            return _tell_when(unchanged, when)
        # What levers see in the data may take a trial, which a job that fits as it is has no need of.
        seen = None if key is None else (*key, *(lever.see_in_data(job) for lever in levers_for(job)))
        return _tell_when(*remembered(seen, lambda: plan_changed(record()), about=about))


def _tell_when(plan: Plan, when: float | None) -> Plan:
    """Returns a plan that says when it was made, if that was before."""
    if when is None:
        return plan
    day = time.strftime("%Y-%m-%d %H:%M", time.localtime(when))
    return replace(plan, source=f"planned before ({day}); {plan.source}")


def _bound(job: Job, samples: int) -> Size | None:
    """Returns bytes that the job surely stays below, or None where that cannot be told quickly."""
    bound = upper_bound(job.model, samples)
    if bound is None:
        return None
    if job.device is None:
        return Size(bound + waiting_of(job.data, sample_bytes(job.model)).at(samples))
    if job.is_compiled and keras_layers.loops(job.model):  # XLA's loops keep copies of what they read
        return None
    return Size(bound + job.device.workspace_guess(bound))


def _key(job: Job) -> tuple[Any, ...] | None:
    """Everything that a plan without levers depends on; None where that cannot be told, or nothing is kept."""
    # The search may build a model, and its plan is then for the built one.
    named = is_on() and job.model.built
    name = fingerprint(job.model, spec_of(job.model, job.data).without_texts()) if named else None
    if name is None:
        return None
    levers = tuple(type(lever).__qualname__ for lever in levers_for(job))
    together = (job.ranks, job.shard_optimizer)
    asked = (job.batch_size, int(job.memory), str(job.allow), job.validation_batch_size, *together)
    return ("plan", name, waiting_of(job.data, 0), levers, job.device, asked)


def _check(model: Any, batch_size: Any) -> None:
    if not getattr(model, "compiled", False):
        raise InvalidInput(
            "A model must be compiled to be planned for: the optimizer and the loss take memory too",
            received=type(model).__name__,
            remedy="Call model.compile(...) first",
        )
    if batch_size != "max":
        check_count('`batch_size` is a whole number of at least 1, or "max"', batch_size)


def read_memory(memory: int | str | None) -> Size:
    """Reads what a job may take; None for what is free."""
    device = budget().device
    return device.free if memory is None else Size(memory, of=device.total)


def measure_beside(model: Any, memory: Size) -> Size:
    """Returns what of a memory other tensors of this process have: data, other networks.

    Only an arena is shared with them for certain: a job may be planned for another GPU than the one that is here.
    """
    device = budget().device
    if device.kind is not Kind.ARENA or memory > device.total:
        return Size(0)
    variables = [*model.variables, *(v for optimizer in optimizers_of(model) for v in optimizer.variables)]
    others = device.total - device.free - (1 + ROUNDED) * sum(map(size_of, variables))
    return Size(max(0, int(others) - (device.total - memory)) // _MIB * _MIB)


def _check_weights(model: Any, memory: Size) -> None:
    weights = Size(4 * sum(math.prod(weight.shape) for weight in model.weights))
    if weights > memory:
        raise InvalidInput(
            f"The weights alone take {weights}, and no plan can make them smaller",
            received=f"memory={memory}",
            remedy="Give more memory, or use a smaller network",
        )
