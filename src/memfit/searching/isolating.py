"""`isolate`: the trainings of another library's search, each in a process of its own."""

from typing import Any

from memfit.errors import InvalidInput
from memfit.searching.trial_server import find_memory


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
