"""On several ranks: the weights, optimizer, metrics and logs of one device, the same bits on all ranks."""

from typing import Any

import keras
import numpy as np
import pytest
from scaling.cases import CASES, train

import memfit
from scaling.several_ranks import run_alone, run_ranks

_ATOL = 1e-12


def _stock() -> dict[str, Any]:
    return {name: _plain(train(name, keras.Model.fit)) for name in CASES}


def _ours() -> dict[str, Any]:
    return {name: _plain(train(name, memfit.fit)) for name in CASES}


def _plain(result: dict[str, Any]) -> dict[str, Any]:
    return {"states": result["states"], "logs": result["logs"]}


@pytest.fixture(scope="module")
def stock() -> dict[str, Any]:
    return run_alone(_stock)


@pytest.fixture(scope="module")
def ours() -> list[dict[str, Any]]:
    return run_ranks(_ours)


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_give_what_one_device_gives(
    name: str, stock: dict[str, Any], ours: list[dict[str, Any]]
) -> None:
    first, second = (rank[name] for rank in ours)
    for one, other in zip(first["states"], second["states"], strict=True):
        np.testing.assert_array_equal(one, other)
    assert first["logs"] == second["logs"]
    for one, expected in zip(first["states"], stock[name]["states"], strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-10, atol=_ATOL)
    assert first["logs"].keys() == stock[name]["logs"].keys()
    for key, values in stock[name]["logs"].items():
        np.testing.assert_allclose(first["logs"][key], values, rtol=1e-6, err_msg=key)
