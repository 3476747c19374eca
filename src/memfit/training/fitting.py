"""`fit`: Keras's own, with the steps of a plan."""

from contextlib import nullcontext
from typing import Any

import keras
import numpy as np

from memfit.budgets.one_piece import take_in_one_piece
from memfit.budgets.peaks import PeakMeter, device_name
from memfit.compat import keras_data
from memfit.errors import CannotTell, InvalidInput, in_one_line
from memfit.planning.fidelity import Fidelity
from memfit.planning.plan import Plan
from memfit.planning.planning import plan as make_plan
from memfit.planning.refusal import DoesNotFit
from memfit.steps.host_arrays import on_host
from memfit.steps.installing import check_model
from memfit.steps.precision import lowered
from memfit.survival.supervised_fit import keras_fit, known_plan, tighter_plan
from memfit.survival.supervision import current
from memfit.training.batches import batch_size_of, check_not_empty, first_samples, looked_into
from memfit.training.feeding import mark_of
from memfit.training.guard.events import Journal, log
from memfit.training.guard.guarding import guarded_training
from memfit.training.guard.reading import reopenable
from memfit.training.monitoring.monitoring import monitored
from memfit.training.planned_steps import check_losses, suited
from memfit.training.run import Run


def fit(
    model: keras.Model,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: str | int = "auto",
    callbacks: Any = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: Any = True,
    class_weight: dict[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: Any = 1,
    *,
    memory: int | str | None = None,
    allow: str = "near",
    plan: Plan | None = None,
) -> keras.callbacks.History:
    """Trains a model as `model.fit` does, in the memory there is.

    All of Keras's arguments have Keras's meaning, and Keras does the work: memfit replaces only what one step
    executes, for the length of this call. A job that fits as it is runs as stock Keras. When memory runs out all
    the same, the step is rolled back, computed in a tighter way, and the training goes on (`docs/guard.md`).

    Args:
        model: A compiled model.
        memory: What training may take, such as "8GiB"; None for what is free. A plan is made for it.
        allow: The most that the plan may change: "exact", "near", "precision" or "model".
        plan: A plan to follow, made by `memfit.plan`, instead of `memory`.

    Returns:
        Keras's `History`; its attribute `memory` is the `Run`.

    Raises:
        DoesNotFit: If no allowed plan fits; it says what would.
        InvalidInput: If the arguments contradict each other, the data is empty, or the plan does not suit the
            model. The model is then as it was.
        OutOfMemory: If memory ran out and nothing that is allowed was tight enough.
    """
    check_model(model)
    check_not_empty(x)
    if plan is not None and memory is not None:
        raise InvalidInput(
            "A plan says the memory it was made for, so give `plan` or `memory`, not both",
            received=f"plan=..., memory={memory!r}",
        )
    journal = Journal()
    # A plan that somebody made is a promise: tightening goes no farther than it does.
    allowed = Fidelity.read(allow) if plan is None else plan.fidelity
    plan = known_plan(model) if plan is None else plan
    x, first = looked_into(x)
    if plan is None and model.compiled:  # Keras says best that a model is not compiled
        try:
            validates = validation_data is not None or bool(validation_split)
            # Keras makes a sample weight of every class weight.
            weight = np.ones(1, "float32") if class_weight and sample_weight is None else sample_weight
            data = (first or x) if keras_data.batches_itself(x) else (x, y, weight)
            samples = batch_size_of(x, batch_size, first)
            validation = (validation_batch_size or samples) if validates else None
            plan = tighter_plan(
                model,
                memory,
                lambda room: make_plan(
                    model, samples, room, allow, data=data, validation_batch_size=validation
                ),
            )
        except DoesNotFit:
            raise
        except Exception as error:  # whatever a step of one's own says to samples that are not real
            # A script that `memfit run` leads knows nothing of memfit, and could not tell it more.
            wrong = isinstance(error, InvalidInput) and not isinstance(error, CannotTell)
            if memory is not None and (wrong or current() is None):
                raise
            journal.note(f"Trained as stock Keras, because no plan could be made: {in_one_line(error)}")
            if memory is not None:
                log.warning("%s", journal.events[-1])
    if plan is not None:
        plan = suited(model, plan)
        batch_size = _batch_size_with(plan, x, batch_size)
        for assumed in check_losses(model, plan, first_samples(x, y, sample_weight, first)):
            journal.note(assumed)
        if not plan.changes_nothing:
            take_in_one_piece(plan.memory, device_name())
    precision = None if plan is None else plan.precision
    arguments = {
        "x": x,
        "y": y,
        "batch_size": batch_size,
        "epochs": epochs,
        "verbose": verbose,
        "callbacks": callbacks,
        "validation_split": validation_split,
        "validation_data": validation_data,
        "shuffle": shuffle,
        "class_weight": class_weight,
        "sample_weight": sample_weight,
        "initial_epoch": initial_epoch,
        "steps_per_epoch": steps_per_epoch,
        "validation_steps": validation_steps,
        "validation_batch_size": validation_batch_size,
        "validation_freq": validation_freq,
    }
    on_the_host = plan is not None and plan.inputs_on_host
    with lowered(model, precision), on_host(model, arguments, on_the_host) as (arguments, host):
        if on_the_host and host is None:
            journal.note("The plan wants arrays, which stay on the host; this data takes more than it says.")
        with (
            guarded_training(model, plan, allowed, journal, *reopenable(arguments), host)
            if model.compiled
            else nullcontext(),
            PeakMeter(device_name()) as meter,
        ):
            history = keras_fit(model, arguments, plan, mark_of(x, y))
    history.memory = Run(
        plan=plan,
        predicted=None if plan is None else plan.predicted,
        measured=meter.peak or None,
        events=tuple(journal.events),
        monitored=monitored(callbacks),
    )
    return history


def _batch_size_with(plan: Plan, x: Any, batch_size: int | None) -> int | None:
    """The batch size to give to Keras, which ignores it for data in batches; the plan's, where there is none."""
    if keras_data.batches_itself(x):
        return batch_size
    if batch_size is None:
        return int(plan.batch_size)
    if plan.batch_size != batch_size:
        raise InvalidInput(
            "A plan is made for one batch size",
            received=f"batch_size={batch_size}, and a plan for {plan.batch_size}",
            remedy=f"Make a plan for batch_size={batch_size}, or leave batch_size out",
        )
    return batch_size
