"""The trials of a KerasTuner tuner, each in a process of its own."""

import copy
from typing import Any

from memfit.errors import InvalidInput
from memfit.searching.isolating import TrialEnded, run_apart
from memfit.searching.trial_server import Shared


def isolate_tuner(tuner: Any, shared: Shared) -> Any:
    """Lets every further trial of a tuner run in a process of its own; returns the tuner.

    A trial that runs out of memory or whose process dies is reported as failed, and the search goes on: these
    failures do not count for `max_consecutive_failed_trials`, because a corner of the space fails as a whole.

    Args:
        tuner: The tuner.
        shared: The memory of each process.
    """

    def run_trial(trial: Any, *args: Any, **kwargs: Any) -> Any:
        from keras_tuner import errors

        plain = copy.copy(tuner)
        del plain.run_trial  # the class's own is meant there
        try:
            results, trial.hyperparameters = run_apart(shared, _run_trial, (plain, trial, args, kwargs))
        except TrialEnded as ended:
            tuner.oracle.max_consecutive_failed_trials += 1
            raise errors.FailedTrialError(str(ended)) from ended
        except InvalidInput as error:  # it would be so for every trial
            raise errors.FatalValueError(str(error)) from error
        return results

    tuner.run_trial = run_trial
    return tuner


def _run_trial(tuner: Any, trial: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    results = tuner.run_trial(trial, *args, **kwargs)
    plain = (
        [_without_model(part) for part in results] if isinstance(results, list) else _without_model(results)
    )
    return plain, trial.hyperparameters


def _without_model(result: Any) -> Any:
    """Keras's `History` holds the model, whose weights are in the tuner's checkpoints already."""
    import keras

    if not isinstance(result, keras.callbacks.History):
        return result
    figures = keras.callbacks.History()
    figures.history, figures.epoch = result.history, result.epoch
    return figures
