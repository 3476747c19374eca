"""A plan that was made before comes from disk, and only where nothing that it depends on has changed."""

from pathlib import Path

import keras
import numpy as np
import pytest

import memfit


def _model(units: int = 512) -> keras.Model:
    keras.utils.clear_session()
    layers = [keras.layers.Dense(units, activation="tanh") for _ in range(3)]
    model = keras.Sequential([keras.Input((512,)), *layers, keras.layers.Dense(1)])
    model.compile("adam", "mse", jit_compile=False)
    return model


def test_the_second_plan_of_the_same_job_is_the_first_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MEMFIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    memory = "44MiB"
    first = memfit.plan(_model(), 2048, memory=memory)
    assert not first.changes_nothing
    assert "planned before" not in first.source
    again = memfit.plan(_model(), 2048, memory=memory)
    assert "planned before" in again.source
    assert (again.recipe, again.predicted, again.levers) == (first.recipe, first.predicted, first.levers)
    for other in (
        memfit.plan(_model(), 2048, memory="45MiB"),
        memfit.plan(_model(520), 2048, memory=memory),
    ):
        assert "planned before" not in other.source


def test_a_plan_of_a_model_that_is_not_built_is_not_kept_because_planning_may_build_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MEMFIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    data = (np.ones((8, 4), "float32"), np.ones((8, 1), "float32"))
    for _ in range(2):
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
        assert "planned before" not in memfit.plan(model, 8, memory="1GiB", data=data).source


def test_a_job_that_fits_as_it_is_is_not_tried_in_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a trial that nothing asked for")

    monkeypatch.setattr("memfit.planning.job.try_in_parts", fail)
    monkeypatch.setattr("memfit.planning.planning.upper_bound", lambda *_: None)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", lambda y_true, y_pred: keras.ops.sum((y_true - y_pred) ** 2), jit_compile=False)
    assert memfit.plan(model, 8, memory="1GiB").changes_nothing
