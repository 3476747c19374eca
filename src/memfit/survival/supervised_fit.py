"""The call of Keras's `fit`: as it is, or in a process that `memfit run` started, with checkpoints."""

from collections.abc import Callable, Mapping
from typing import Any

import keras

from memfit.compat import keras_data
from memfit.data.arrays import arrays
from memfit.errors import MemfitError
from memfit.planning.fingerprint import fingerprint
from memfit.planning.plan import Plan
from memfit.planning.refusal import DoesNotFit
from memfit.survival.resuming import Passage
from memfit.survival.supervision import Supervision, current
from memfit.training.feeding import Feed, feed

_TIGHTER = 0.8  # of what the plan that ran out had predicted


def keras_fit(
    model: keras.Model, arguments: Mapping[str, Any], plan: Plan | None, mark: int
) -> keras.callbacks.History:
    """Calls Keras's `fit` with all its arguments by name, and returns what it returns.

    Args:
        model: The model.
        arguments: All arguments of Keras's `fit`.
        plan: The plan that is followed; None where there is none.
        mark: What the data is known by (`mark_of`); 0 where nothing is known.
    """
    supervision = current()
    if supervision is None:
        return model.fit(**arguments)
    call = supervision.calls
    supervision.calls += 1
    if plan is not None:
        plan.save(_plan_file(supervision, call))
    fed, known = _with_known_order(arguments, supervision.seed + call)
    passage = Passage(
        _listed(fed["callbacks"]),
        supervision=supervision,
        call=call,
        data=fed["x"],
        feed=known,
        kept_open=fed["steps_per_epoch"] is not None,
        mark=mark,
        add_progbar=fed["verbose"] != 0,
        verbose=fed["verbose"],
        epochs=fed["epochs"],
        steps=_steps(fed),
        model=model,
    )
    fit = supervision.originals.get("fit", type(model).fit)
    supervision.inside = supervision.training = True
    try:
        history = fit(model, **{**fed, "callbacks": passage})
        passage.end()
    finally:
        supervision.inside = supervision.training = False
    return history


def known_plan(model: keras.Model) -> Plan | None:
    """The plan that an earlier process followed in this call of `fit`; None where it has to be made."""
    supervision = current()
    if supervision is None:
        return None
    if supervision.tighten and not supervision.has_finished(supervision.calls):
        return None
    return _plan_before(supervision, model)


def tighter_plan(
    model: keras.Model, memory: int | str | None, make: Callable[[int | str | None], Plan]
) -> Plan:
    """Makes a plan for a memory, or for less where an earlier process ran out of it.

    Where no plan takes less, the one before has another chance: what took the memory may be gone.
    """
    supervision = current()
    before = None if supervision is None or not supervision.tighten else _plan_before(supervision, model)
    if before is None:
        return make(memory)
    try:
        return make(int(_TIGHTER * min(before.memory, before.predicted)))
    except DoesNotFit:
        return before


def _plan_before(supervision: Supervision, model: keras.Model) -> Plan | None:
    path = _plan_file(supervision, supervision.calls)
    plan = Plan.load(path) if path.exists() else None
    return plan if plan is not None and plan.model == fingerprint(model) else None


def _plan_file(supervision: Supervision, call: int) -> Any:
    return supervision.directory / f"plan-{call:03d}.json"


def _with_known_order(arguments: Mapping[str, Any], seed: int) -> tuple[dict[str, Any], Feed]:
    """Returns the arguments, and what is known of the order of the data.

    Arrays that Keras would shuffle without a seed are given an order that can be repeated: nobody counts on a
    particular one there.
    """
    fed = dict(arguments)
    names = ("batch_size", "shuffle", "class_weight", "validation_split")
    known = feed(fed["x"], fed["y"], fed["sample_weight"], **{name: fed[name] for name in names})
    unseeded = not known.reproducible and not keras_data.batches_itself(fed["x"])
    if not unseeded or fed["shuffle"] == "batch" or fed["steps_per_epoch"] is not None:
        return fed, known
    parts = (fed["x"], fed["y"], fed["sample_weight"])
    try:
        if fed["validation_split"] and fed["validation_data"] is None:
            parts, fed["validation_data"] = keras_data.split_off_validation(parts, fed["validation_split"])
        data = arrays(*parts, batch_size=fed["batch_size"] or 32, shuffle=True, seed=seed)
    except (
        MemfitError,
        ValueError,
        TypeError,
    ):  # sparse arrays and the like, which only Keras can take apart
        return dict(arguments), known
    fed["validation_batch_size"] = fed["validation_batch_size"] or fed["batch_size"]
    fed.update(x=data, y=None, sample_weight=None, shuffle=False, validation_split=0.0, batch_size=None)
    return fed, feed(data)


def _listed(callbacks: Any) -> Any:
    return callbacks.callbacks if isinstance(callbacks, keras.callbacks.CallbackList) else callbacks


def _steps(fed: Mapping[str, Any]) -> int | None:
    """Steps of an epoch, for the progress bar; None where only the data's end will tell."""
    x, given = fed["x"], fed["steps_per_epoch"]
    if given is not None:
        return int(given)
    if isinstance(x, keras.utils.PyDataset):
        return x.num_batches
    if keras_data.batches_itself(x):
        batches = int(x.cardinality()) if keras_data.is_dataset(x) else -1
        return batches if batches >= 0 else None
    samples = len(next(leaf for leaf in keras.tree.flatten(x) if leaf is not None))
    trained = int(samples * (1 - (fed["validation_split"] if fed["validation_data"] is None else 0.0)))
    return -(-trained // (fed["batch_size"] or 32))
