"""`plan`: the search of the planning room, with steps recorded as this room executes them."""

from functools import partial
from typing import Any, Literal

from memfit.estimation.estimate import Estimate
from memfit.estimation.estimating import estimate
from memfit.planning.candidates import Way
from memfit.planning.plan import Plan
from memfit.planning.recorded_steps import PARTS_RECORDED, AnyEstimate
from memfit.planning.searching import search

# Steps are recorded at a quarter of the batch they are for: larger ones take longer and show no more.
_LARGEST_RECORDED_FOR = 32


def plan(
    model: Any,
    batch_size: int | Literal["max"],
    memory: int | str | None = None,
    allow: str = "near",
    *,
    data: Any = None,
    validation_batch_size: int | None = None,
    device: str | None = None,
) -> Plan:
    """Chooses what to change so that a training fits into the memory.

    The most faithful plan that fits is taken, and of equally faithful ones the fastest. It is found from
    recordings of a few small steps in another process (or, for jobs that clearly fit, from the layers' shapes
    alone); nothing of the model changes.

    Args:
        model: A compiled Keras model.
        batch_size: Samples in one optimizer update, or "max" for as many as fit.
        memory: What the job may take on its device, such as "8GiB" or "80%"; None for what is free there.
        allow: The farthest that the plan may go: "exact", "near", "precision" or "model".
        data: An example of the training data (or the dataset), where the model does not tell its inputs.
        validation_batch_size: Samples in a validation batch; None where there is no validation.
        device: A GPU to plan for, such as "RTX 4090", which need not be there. With memfit[gpu-compiler] installed
            its own compiler's figures are used. Its memory is taken where `memory` is None.

    Returns:
        The plan; print it, or give it to `memfit.fit(..., plan=plan)`.

    Raises:
        DoesNotFit: If no allowed plan fits; it says what would.
        InvalidInput: If an argument is none, or the memory is less than the weights alone take.
    """

    def recorder(way: Way, size: int) -> AnyEstimate:
        batch = PARTS_RECORDED * size if way.in_parts else size
        if not model.jit_compile and device is None:
            batch = min(batch, _LARGEST_RECORDED_FOR)  # other sizes come from the same recording
        found = estimate(model, batch, data=data, prepare=partial(compute, way=way), device=device)
        # As `fit` runs a planned step in an arena (`one_piece.py`), and as a GPU's allocator has its memory anyway.
        return found.in_one_piece() if isinstance(found, Estimate) else found

    return search(
        model,
        batch_size,
        memory,
        allow,
        data=data,
        validation_batch_size=validation_batch_size,
        recorder=recorder,
        device=device,
    )


def compute(model: Any, way: Way) -> None:
    """Gives a model the step that is computed in some way; for a copy that is recorded and thrown away."""
    from memfit.training import private_apis
    from memfit.training.micro_batches import micro_batched_train_step, whole_batch_train_step
    from memfit.training.rematerialisation import rematerialised

    def as_it_is(x: Any) -> Any:
        return private_apis.forward(model, x, training=True)

    forward = as_it_is if way.segments is None else rematerialised(model, way.segments)
    if way.in_parts:
        step = micro_batched_train_step(
            model, lambda samples: (samples + PARTS_RECORDED - 1) // PARTS_RECORDED, forward
        )
    else:
        step = whole_batch_train_step(model, forward)
    object.__setattr__(model, "train_step", step)
