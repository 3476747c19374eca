"""The steps that a plan describes, in place of the model's own."""

from collections.abc import Iterator
from contextlib import contextmanager

import keras

from memfit.budgets.errors import InvalidInput
from memfit.planning.fingerprint import fingerprint
from memfit.planning.plan import Plan
from memfit.training import private_apis
from memfit.training.micro_batches import Step, micro_batched_test_step, micro_batched_train_step
from memfit.training.precision import lowered
from memfit.training.rematerialisation import rematerialised
from memfit.training.rematerialised_step import rematerialised_train_step
from memfit.training.steps import check_size, installed, is_custom, why_not_micro_batched


@contextmanager
def planned(model: keras.Model, plan: Plan | None) -> Iterator[list[str]]:
    """Lets a model train as a plan says, and gives it its own steps back afterwards.

    Args:
        model: The compiled model.
        plan: The plan; None to change nothing.

    Yields:
        Sentences about what of the plan could not be done.

    Raises:
        InvalidInput: If the plan was made for another model. The model is then as it was.
    """
    if plan is None:
        yield []
        return
    if plan.model != fingerprint(model):
        raise InvalidInput(
            "A plan is applied to the model it was made for, and this is another one",
            received=f"a plan for {plan.model}, a model {fingerprint(model)}",
            remedy="Make a plan for this model, with memfit.plan",
        )
    events: list[str] = []
    test_step = _test_step(model, plan, events)
    with (
        lowered(model, plan.precision),
        installed(model, train_step=_train_step(model, plan), test_step=test_step),
    ):
        yield events


def _train_step(model: keras.Model, plan: Plan) -> Step | None:
    if plan.micro_batch is None and plan.segments is None:
        return None
    if is_custom(model, "train_step"):
        raise InvalidInput(
            "A model with its own train_step is trained by that method, which no lever can look into",
            received=type(model).__name__,
            remedy="Make a plan for this model, with memfit.plan",
        )
    if plan.micro_batch is None:
        assert plan.segments is not None
        return rematerialised_train_step(model, plan.segments)
    check_size("plan.micro_batch", plan.micro_batch)
    reason = why_not_micro_batched(model)
    if reason is not None:
        raise InvalidInput(
            f"The plan asks for micro-batches, and this model cannot be cut into them: {reason}",
            remedy="Make a plan for this model, with memfit.plan",
        )
    if plan.segments is None:
        return micro_batched_train_step(
            model, plan.micro_batch, lambda x: private_apis.forward(model, x, training=True)
        )
    call = rematerialised(model, plan.segments)
    return micro_batched_train_step(model, plan.micro_batch, lambda x: call(x, training=True))


def _test_step(model: keras.Model, plan: Plan, events: list[str]) -> Step | None:
    if plan.validation_batch is None:
        return None
    check_size("plan.validation_batch", plan.validation_batch)
    if is_custom(model, "test_step"):
        events.append("Validation runs in whole batches: the model's test_step is custom.")
        return None
    return micro_batched_test_step(model, plan.validation_batch)
