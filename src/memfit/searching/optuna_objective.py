"""An Optuna objective in a process of its own: what it asks its `trial` is answered by the study's process."""

import pickle
from typing import Any

import cloudpickle

from memfit.budgets.child import ask
from memfit.errors import InvalidInput
from memfit.searching.isolating import TrialEnded, run_apart
from memfit.searching.trial_server import Shared


class IsolatedObjective:
    """What `study.optimize` calls in the place of an objective.

    A trial that runs out of memory or whose process dies is pruned; its user attribute "memfit" says why. Whatever
    else the objective raises, `optuna.TrialPruned` included, is raised to the study.

    Args:
        objective: The function of one trial.
        shared: The memory of each of its processes.
    """

    def __init__(self, objective: Any, shared: Shared) -> None:
        self._objective, self._shared = objective, shared

    def __call__(self, trial: Any) -> Any:
        import optuna

        try:
            return run_apart(
                self._shared, _call, (self._objective,), lambda question: _respond(trial, question)
            )
        except TrialEnded as ended:
            trial.set_user_attr("memfit", str(ended))
            raise optuna.TrialPruned(str(ended)) from ended


class _AskedTrial:
    """The `trial` of an objective: every attribute and method is the study's own, in another process."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        kind, value = _ask(name, None)
        return (lambda *args, **kwargs: _ask(name, (args, kwargs))[1]) if kind == "method" else value


def _call(objective: Any) -> Any:
    return objective(_AskedTrial())


def _ask(name: str, call: Any) -> tuple[str, Any]:
    kind, value = pickle.loads(ask(cloudpickle.dumps((name, call))))
    if kind == "error":
        raise value
    return kind, value


def _respond(trial: Any, question: bytes) -> bytes:
    name, call = pickle.loads(question)
    try:
        value = getattr(trial, name)
        if call is not None:
            answer = ("value", value(*call[0], **call[1]))
        else:
            answer = ("method", None) if callable(value) else ("value", value)
    except Exception as error:  # raised in the objective, where it was caused
        answer = ("error", error)
    try:
        return cloudpickle.dumps(answer)
    except Exception:
        refusal = InvalidInput(f"`trial.{name}` cannot be sent to the process of a trial")
        return pickle.dumps(("error", refusal))
