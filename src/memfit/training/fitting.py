"""`fit`: Keras's own, with the steps of a plan."""

from contextlib import nullcontext
from typing import Any

import keras

from memfit.budgets.peaks import PeakMeter, device_name, take_one_region
from memfit.compat import keras_data, keras_training
from memfit.errors import InvalidInput
from memfit.planning.fidelity import Fidelity
from memfit.planning.plan import Plan
from memfit.steps.host_arrays import on_host
from memfit.steps.installing import check_model
from memfit.steps.recipe import Recipe
from memfit.training.batches import check_not_empty, first_samples, look_ahead
from memfit.training.feeding import fingerprint_data
from memfit.training.guard.events import Journal
from memfit.training.guard.guarding import guarded_training
from memfit.training.guard.reading import reopenable
from memfit.training.guard.strategies import explain_distribution
from memfit.training.monitoring.monitoring import find_record
from memfit.training.peers import Peers, find_peers
from memfit.training.plan_choice import check_losses, choose_plan, example_of, suited
from memfit.training.recorded_call import RecordedCall
from memfit.training.run import Run, judge
from memfit.training.running import current_runner
from memfit.training.validation_data import read_validation_as_needed

# The arguments of `fit` that Keras's has not.
_OWN_ARGUMENTS = {"model", "memory", "allow", "plan", "ranks", "shard_optimizer"}


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
    ranks: str | int = "auto",
    shard_optimizer: bool = False,
) -> keras.callbacks.History:
    """Trains a model as `model.fit` does, within a memory budget.

    All of Keras's arguments keep their meaning, and Keras's own loop runs: memfit replaces only what one step
    executes, during this call. A job that fits as it is runs as stock Keras. If memory runs out anyway, the step is
    rolled back, computed again with less memory, and training continues (`docs/guard.md`).

    Args:
        model: A compiled model.
        memory: What training may take, such as "8GiB"; None for what is free. A plan is made for it.
        allow: The most that the plan may change: "exact", "near", "precision" or "model".
        plan: A plan to follow, made by `memfit.plan`, instead of `memory`.
        ranks: How many processes train together, as `memfit run --ranks` starts them; "auto" for as many as there
            are. `batch_size` and the data are those of all together, on every rank (`docs/scaling.md`).
        shard_optimizer: Whether each of them may keep a part of the optimizer's state, where that is needed to fit.

    Returns:
        Keras's `History`; its attribute `memory` is the `Run`.

    Raises:
        DoesNotFit: If no allowed plan fits; it says what would.
        InvalidInput: If the arguments contradict each other, the data is empty, or the plan does not suit the
            model. The model is then as it was.
        OutOfMemory: If memory ran out and nothing that is allowed was tight enough.
    """
    arguments = {name: value for name, value in locals().items() if name not in _OWN_ARGUMENTS}
    check_model(model)
    peers = find_peers(ranks)
    current_runner().begin(model, arguments)
    _check_arguments(x, memory, plan)
    # A plan that the user made is a promise: tightening goes no farther than it does.
    allowed = Fidelity.read(allow) if plan is None else plan.fidelity
    journal = Journal()
    planned, told = plan is not None, peers.rank == 0
    with (
        keras_training.knowing_if_eager(model),
        peers.training(model, arguments, allowed) as (arguments, remarks),
        RecordedCall(model, arguments, memory, allowed, journal, planned_before=planned, told=told) as call,
    ):
        arguments["x"], first = look_ahead(x)
        if model.compiled:
            remarks = [*remarks, *peers.explain_shares(model, example_of(arguments, first), allowed)]
        for remark in filter(None, (explain_distribution(), *remarks)):
            journal.note(remark, warn=told)  # before anything is trained
        if plan is None and model.compiled:  # Keras says best that a model is not compiled
            together = {"ranks": peers.count, "shard_optimizer": shard_optimizer}
            plan = choose_plan(model, arguments, first, memory, allow, journal, together)
        plan = peers.settle(plan)
        if plan is not None:
            take_one_region()  # before anything runs, and the optimizer's state is made
            plan = _prepare(model, plan, arguments, peers.count)
            if planned:
                check_losses(model, plan, first_samples(arguments, first), journal)
        call.begin(plan)
        return _train(model, arguments, plan, allowed, journal, call, peers)


def _check_arguments(x: Any, memory: int | str | None, plan: Plan | None) -> None:
    check_not_empty(x)
    if plan is not None and memory is not None:
        raise InvalidInput(
            "A plan already contains the memory it was made for: pass `plan` or `memory`, not both",
            received=f"plan=..., memory={memory!r}",
        )


def _prepare(model: keras.Model, plan: Plan, arguments: dict[str, Any], ranks: int) -> Plan:
    """Returns the plan as this model follows it; its batch size is `fit`'s where none was given.

    Keras ignores the batch size of data in batches. On several ranks a plan is for the largest share of a batch.

    Raises:
        InvalidInput: If the plan does not suit the model or the batch size.
    """
    if plan.ranks not in (1, ranks):
        raise InvalidInput(
            f"This plan is for {plan.ranks} ranks that train together",
            received=f"a job of {ranks}",
            remedy=f"Start it by `memfit run --ranks {plan.ranks} script.py`, or make a plan for this job",
        )
    plan, batch_size = suited(model, plan), arguments["batch_size"]
    if keras_data.batches_itself(arguments["x"]):
        return plan
    if batch_size is None:
        arguments["batch_size"] = int(plan.batch_size) * ranks
    elif plan.batch_size != -(-batch_size // ranks):
        raise InvalidInput(
            "A plan holds for one batch size only",
            received=f"batch_size={batch_size} on {ranks} rank{'s' * (ranks > 1)}, and a plan for {plan.batch}",
            remedy=f"Make a plan for batch_size={batch_size}, or leave batch_size out",
        )
    return plan


def _train(
    model: keras.Model,
    arguments: dict[str, Any],
    plan: Plan | None,
    allowed: Fidelity,
    journal: Journal,
    call: RecordedCall,
    peers: Peers,
) -> keras.callbacks.History:
    """Trains as a plan says, under guard; returns Keras's history, with the `Run`."""
    recipe = Recipe() if plan is None else plan.recipe
    arguments = peers.read_shares(arguments)
    mark = fingerprint_data(arguments["x"], arguments["y"])
    # A rank takes its share of arrays by the samples' numbers, and does not touch the rest.
    numbered = recipe.inputs_on_host or peers.count > 1
    with recipe.applied(model), on_host(model, arguments, numbered) as (arguments, host):
        if recipe.inputs_on_host and host is None:
            journal.note(
                "The plan expects NumPy arrays, which stay on the host; this data takes more memory than planned."
            )
        if plan is not None and not plan.is_bound and peers.count == 1:
            arguments = read_validation_as_needed(model, arguments)
        with (
            PeakMeter(device_name()) as meter,
            guarded_training(
                model,
                plan,
                allowed,
                journal,
                reopenable(arguments),
                host,
                peers=peers,
            )
            if model.compiled
            else nullcontext(),
            call.listening(arguments) as listened,
        ):
            history = current_runner().fit(model, listened, plan, mark)
    if plan is not None:
        says = judge(plan, meter.peak, ran_out=any(event.phase for event in journal.events))
        if says is not None:
            journal.note(says, warn=meter.peak > plan.memory)
    history.memory = Run(
        plan=plan,
        measured=meter.peak or None,
        events=tuple(journal.events),
        monitored=find_record(arguments["callbacks"]),
        record=call.file,
    )
    return history
