"""The searches of Optuna, KerasTuner and scikit-learn, the real ones, with trainings in processes of their own."""

import os
import pickle
import signal
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import memfit

optuna = pytest.importorskip("optuna")
keras_tuner = pytest.importorskip("keras_tuner")
model_selection = pytest.importorskip("sklearn.model_selection")

TOO_MANY = 3_000_000  # Dense(TOO_MANY) on four features has 46 MiB of kernel, in 60 MiB
X = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
Y = (X[:, 0] > 0).astype("int64")


def _model(units: int, outputs: int = 1) -> keras.Model:
    layers = [keras.layers.Dense(units), keras.layers.Dense(outputs)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile("sgd", "mse")
    return model


def _objective(trial: Any) -> float:
    units = trial.suggest_categorical("units", [4, TOO_MANY])
    trial.set_user_attr("pid", os.getpid())
    if trial.number == 2:
        os.kill(os.getpid(), signal.SIGSEGV)
    if trial.number == 3:
        raise optuna.TrialPruned("by hand")
    if trial.number == 4:
        raise ZeroDivisionError
    loss = _model(units).fit(X, Y, verbose=0).history["loss"][-1]
    trial.report(loss, step=0)
    assert trial.params["units"] == units
    return float(loss) if not trial.should_prune() else 1e9


def test_optuna_prunes_what_runs_out_of_memory_or_dies_and_the_study_goes_on() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(0))
    for units in (4, TOO_MANY, 4, 4, 4, 4):
        study.enqueue_trial({"units": units})
    study.optimize(memfit.isolate(_objective, memory="60MiB"), n_trials=6, catch=(ZeroDivisionError,))
    states = [trial.state.name for trial in study.trials]
    assert states == ["COMPLETE", "PRUNED", "PRUNED", "PRUNED", "FAIL", "COMPLETE"]
    assert "Out of memory" in study.trials[1].user_attrs["memfit"]
    assert "SIGSEGV" in study.trials[2].user_attrs["memfit"]
    assert "memfit" not in study.trials[3].user_attrs
    pids = {trial.user_attrs["pid"] for trial in study.trials}
    assert len(pids) == 6
    assert os.getpid() not in pids
    assert study.trials[0].intermediate_values[0] == study.trials[0].value
    assert study.best_params == {"units": 4}


def test_what_an_optuna_trial_cannot_send_is_told_in_the_objective() -> None:
    def objective(trial: Any) -> float:
        with pytest.raises(memfit.InvalidInput, match=r"`trial\.secret` cannot be sent"):
            _ = trial.secret
        with pytest.raises(AttributeError):
            _ = trial.no_such_thing
        return 1.0

    class Trial:
        @property
        def secret(self) -> Any:
            return (number for number in range(3))

    assert memfit.isolate(objective, memory="60MiB")(Trial()) == 1.0


def _build(hp: Any) -> keras.Model:
    units = hp.Choice("units", [4, TOO_MANY, 5, 6])
    if units == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return _model(units)


def test_a_failed_trial_of_keras_tuner_is_reported_as_failed_and_the_search_goes_on(
    tmp_path: Path,
) -> None:
    tuner = keras_tuner.GridSearch(
        _build, objective="loss", directory=tmp_path, max_trials=4, max_consecutive_failed_trials=2
    )
    assert memfit.isolate(tuner, memory="60MiB") is tuner
    tuner.search(X, Y, epochs=2, verbose=0)
    trials = list(tuner.oracle.trials.values())
    assert [trial.status for trial in trials] == ["COMPLETED", "FAILED", "FAILED", "COMPLETED"]
    assert "Out of memory" in trials[1].message
    assert "SIGKILL" in trials[2].message
    units = tuner.get_best_hyperparameters()[0].values["units"]
    (best,) = tuner.get_best_models()  # from the checkpoint that the trial's process wrote
    assert best.count_params() == 4 * units + units + units + 1
    assert {trials[0].best_step, trials[3].best_step} <= {0, 1}


def test_data_that_cannot_be_sent_ends_a_tuner_with_a_sentence(tmp_path: Path) -> None:
    import tensorflow as tf

    tuner = keras_tuner.RandomSearch(
        lambda hp: _model(hp.Int("units", 2, 4)), objective="loss", directory=tmp_path, max_trials=2
    )
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    with pytest.raises(keras_tuner.errors.FatalValueError, match=r"must be picklable.*build datasets inside"):
        memfit.isolate(tuner, memory="60MiB").search(dataset, verbose=0)


def _build_for_sklearn(X: Any, y: Any, units: int) -> keras.Model:  # noqa: N803 - scikit-learn's names
    return _model(units, y.shape[1])


def test_scikit_learn_scores_a_fit_that_runs_out_of_memory_with_its_error_score() -> None:
    estimator = keras.wrappers.SKLearnClassifier(_build_for_sklearn)
    isolated = memfit.isolate(estimator, memory="60MiB")
    grid = {"model_kwargs": [{"units": 4}, {"units": TOO_MANY}]}
    search = model_selection.GridSearchCV(isolated, grid, cv=[(np.arange(16), np.arange(16, 24))])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        search.fit(X, Y)
    assert any("Out of memory" in str(warning.message) for warning in told)
    good, bad = search.cv_results_["mean_test_score"]
    assert 0 <= good <= 1
    assert np.isnan(bad)
    best = search.best_estimator_
    assert isinstance(best, keras.wrappers.SKLearnClassifier)
    assert list(best.classes_) == [0, 1]
    answers = search.predict(X)
    assert answers.shape == (24,)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(best)).predict(X), answers)
    assert best.model_.count_params() == 4 * 4 + 4 + 4 * 2 + 2
    with pytest.raises(ValueError, match="positive integer"):
        best.set_params(model_kwargs={"units": -1}).fit(X, Y)
    with pytest.raises(Exception, match="not fitted"):
        best.predict(X)


def test_what_is_no_search_is_refused() -> None:
    with pytest.raises(
        memfit.InvalidInput, match="Only an Optuna objective, a KerasTuner tuner or a scikit-learn"
    ):
        memfit.isolate("a study")
    search = model_selection.GridSearchCV(keras.wrappers.SKLearnClassifier(_build_for_sklearn), {})
    with pytest.raises(memfit.InvalidInput, match="Isolate the estimator"):
        memfit.isolate(search)
