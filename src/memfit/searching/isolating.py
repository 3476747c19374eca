"""`isolate`: the trainings of another library's search, each in a process of its own."""

import os
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle

from memfit.budgets.kept_server import kept_server
from memfit.errors import InvalidInput, MemfitError, ProcessDied
from memfit.searching.trial import DONE, OUT_OF_MEMORY
from memfit.searching.trial_process import describe, is_out_of_memory
from memfit.searching.trial_server import Shared, find_memory, start_server


def isolate(search: Any, *, memory: int | str | None = None) -> Any:
    """Runs each training of a search in its own process, so that running out of memory or a crash ends only that.

    | you pass | you get | a training that runs out of memory or dies is |
    |---|---|---|
    | an Optuna objective | an objective for `study.optimize` | pruned |
    | a KerasTuner tuner | the tuner | failed, and the search continues |
    | a scikit-learn estimator | an estimator for a search | scored with `error_score` |

    Args:
        search: One of these. It and its data are sent to other processes: NumPy arrays can be, a `tf.data` pipeline
            has to be built there.
        memory: What each process may take, such as "8GiB"; None for what is free.

    Returns:
        What to use in its place.

    Raises:
        InvalidInput: If it is something else.

    Example:
        ```python
        study.optimize(memfit.isolate(objective, memory="2GiB"), n_trials=20)
        ```
    """
    shared = find_memory(memory)
    if hasattr(search, "run_trial") and hasattr(search, "oracle"):
        from memfit.searching.tuner import isolate_tuner

        return isolate_tuner(search, shared)
    if hasattr(search, "get_params") and hasattr(search, "fit"):
        if hasattr(search, "estimator"):
            raise InvalidInput(
                "Isolate the estimator, not the scikit-learn search",
                received=type(search).__name__,
                remedy="Write GridSearchCV(memfit.isolate(estimator), ...)",
            )
        from memfit.searching.estimator import isolate_estimator

        return isolate_estimator(search, shared)
    if callable(search) and not isinstance(search, type):
        from memfit.searching.optuna_objective import IsolatedObjective

        return IsolatedObjective(search, shared)
    raise InvalidInput(
        "Only an Optuna objective, a KerasTuner tuner or a scikit-learn estimator can be isolated",
        received=search,
        remedy="In your own search, call memfit.isolated(function, ...)",
    )


class TrialEnded(MemfitError, RuntimeError):
    """A trial ran out of memory, or its process died: the search can go on without it."""


def run_apart(
    shared: Shared,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    respond: Callable[[bytes], bytes] | None = None,
) -> Any:
    """Runs `function(*args)` in a process of its own, forked from one that is kept for a minute.

    Args:
        shared: The memory it may take.
        function: What to run.
        args: Its arguments.
        respond: Answers what it asks.

    Raises:
        TrialEnded: If it ran out of memory, or its process died.
        InvalidInput: If something cannot be sent between the processes.
        Exception: Whatever else the function raised.
    """
    try:
        task = cloudpickle.dumps((function, args))
    except Exception as error:  # cloudpickle raises whatever an object's own pickling raises
        raise InvalidInput(
            f"The arguments of a trial must be picklable to be sent to its process ({error})",
            remedy="Pass NumPy arrays or file names, and build datasets inside the function that trains",
        ) from error
    # A process that was started before has the environment of that time.
    key = ("trials", tuple(sorted({**os.environ, **shared.environment}.items())))
    with kept_server(key, partial(start_server, shared)) as server:
        try:
            status, value = server.run(_run, (task,), respond=respond)
        except ProcessDied as died:
            raise TrialEnded(str(ProcessDied(died.exit_code, "The trial's process"))) from died
    if status == OUT_OF_MEMORY:
        raise TrialEnded(f"Out of memory: {value}")
    return value


def _run(task: bytes) -> tuple[str, Any]:
    try:
        function, args = pickle.loads(task)
        return DONE, function(*args)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return OUT_OF_MEMORY, describe(error, OUT_OF_MEMORY)
