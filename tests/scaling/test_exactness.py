"""On several ranks: the weights, optimizer, metrics and logs of one device, the same bits on all ranks."""

from typing import Any

import keras
import numpy as np
import pytest

import memfit
from memfit.scaling.communicator import join_cluster
from memfit.steps.rematerialisation import find_choices
from scale.cases import COMBINED, convolutions, statistics, train
from scaling.several_ranks import run_alone, run_ranks
from training.parity import levers

_EVALUATED = next(iter(COMBINED))
_RECIPES = "micro-batches on one rank, rematerialised on the other"


_OTHERS = [name for name in COMBINED if name != _EVALUATED]


def _stock() -> dict[str, Any]:
    first = train(COMBINED[_EVALUATED], keras.Model.fit)
    statistics = train(_statistics, keras.Model.fit)
    found = {_EVALUATED: first, "exact statistics": statistics, "near statistics": statistics}
    return _plain(found) | _uses(first, keras.Model.evaluate, keras.Model.predict)


def _ours() -> dict[str, Any]:
    first = train(COMBINED[_EVALUATED], memfit.fit)
    found = {
        _EVALUATED: first,
        "exact statistics": train(_statistics, memfit.fit, allow="exact"),
        "near statistics": train(_statistics, memfit.fit),
    }
    return _plain(found) | _uses(first, memfit.evaluate, memfit.predict)


def _other_stock() -> dict[str, Any]:
    found = {name: train(COMBINED[name], keras.Model.fit) for name in _OTHERS}
    return _plain(found | {_RECIPES: train(convolutions, keras.Model.fit)})


def _other_ours() -> dict[str, Any]:
    found = {name: train(COMBINED[name], memfit.fit) for name in _OTHERS}
    return _plain(found | {_RECIPES: train(convolutions, _fit_by_recipe)})


def _statistics() -> Any:
    return statistics(synchronized=False)


def _fit_by_recipe(model: keras.Model, **arguments: Any) -> Any:
    ranks = join_cluster()
    assert ranks is not None
    if ranks.rank == 0:
        plan = levers(model, 8, segments=find_choices(model, 8)[-1])
    else:
        plan = levers(model, 8, micro_batch=3, inputs_on_host=True)
    return memfit.fit(model, **arguments, plan=plan)


def _plain(found: dict[str, Any]) -> dict[str, Any]:
    return {name: {"states": each["states"], "logs": each["logs"]} for name, each in found.items()}


def _uses(trained: dict[str, Any], evaluate: Any, predict: Any) -> dict[str, Any]:
    model, arguments = trained["model"], trained["arguments"]
    x, y, weights = (arguments[name] for name in ("x", "y", "sample_weight"))
    evaluated = evaluate(model, x, y, sample_weight=weights, batch_size=15, verbose=0, return_dict=True)
    return {"evaluated": evaluated, "predicted": predict(model, x, batch_size=15, verbose=0)}


@pytest.fixture(scope="module")
def stock() -> dict[str, Any]:
    return run_alone(_stock)


@pytest.fixture(scope="module")
def ours() -> list[dict[str, Any]]:
    return run_ranks(_ours)


@pytest.fixture(scope="module")
def other_stock() -> dict[str, Any]:
    return run_alone(_other_stock)


@pytest.fixture(scope="module")
def other_ours() -> list[dict[str, Any]]:
    return run_ranks(_other_ours)


@pytest.mark.parametrize("name", [_EVALUATED, "exact statistics"])
def test_two_ranks_give_what_one_device_gives(
    name: str, stock: dict[str, Any], ours: list[dict[str, Any]]
) -> None:
    _check_same(name, stock, ours)


@pytest.mark.parametrize("name", [*_OTHERS, _RECIPES])
def test_two_ranks_give_what_one_device_gives_for_other_models_too(
    name: str, other_stock: dict[str, Any], other_ours: list[dict[str, Any]]
) -> None:
    _check_same(name, other_stock, other_ours)


def _check_same(name: str, stock: dict[str, Any], ours: list[dict[str, Any]]) -> None:
    _check_same_bits(name, ours)
    first = ours[0][name]
    for one, expected in zip(first["states"], stock[name]["states"], strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-10, atol=1e-12)
    assert first["logs"].keys() == stock[name]["logs"].keys()
    for key, values in stock[name]["logs"].items():
        np.testing.assert_allclose(first["logs"][key], values, rtol=1e-6, err_msg=key)


def test_statistics_of_each_rank_by_itself_are_near_and_the_same_bits(
    stock: dict[str, Any], ours: list[dict[str, Any]]
) -> None:
    name = "near statistics"
    _check_same_bits(name, ours)
    pairs = zip(ours[0][name]["states"], stock[name]["states"], strict=True)
    assert 1e-6 < max(np.abs(one - other).max() for one, other in pairs) < 1.0


def test_evaluation_and_prediction_are_those_of_one_device(
    stock: dict[str, Any], ours: list[dict[str, Any]]
) -> None:
    for rank in ours:
        assert rank["evaluated"].keys() == stock["evaluated"].keys()
        for key, value in stock["evaluated"].items():
            np.testing.assert_allclose(rank["evaluated"][key], value, rtol=1e-6, err_msg=key)
        np.testing.assert_allclose(rank["predicted"], stock["predicted"], rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(ours[0]["predicted"], ours[1]["predicted"])


def _check_same_bits(name: str, ranks: list[dict[str, Any]]) -> None:
    first, second = (rank[name] for rank in ranks)
    for one, other in zip(first["states"], second["states"], strict=True):
        np.testing.assert_array_equal(one, other)
    assert first["logs"] == second["logs"]
