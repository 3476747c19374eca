"""Random networks, others every day: memfit's steps against stock Keras. `make fuzz` compares more of them."""

import datetime
import warnings

import pytest
from hypothesis import HealthCheck, Phase, given, reject, seed, settings

from fuzz.compare import NotTrained, find_difference
from fuzz.networks import Network, networks

TODAY = datetime.date.today().toordinal()


def some(count: int) -> settings:
    return settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # `make fuzz` shrinks
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.filterwarnings("ignore::UserWarning")
@seed(TODAY)
@some(2)  # the first that hypothesis gives is always its simplest
@given(networks())
def test_a_random_network_trains_as_in_stock_keras(network: Network):
    assert_same(network)


@pytest.mark.filterwarnings("ignore::UserWarning")
@seed(TODAY + 1)
@some(5)
@given(networks())
def test_more_random_networks_train_as_in_stock_keras(network: Network):
    assert_same(network)


def assert_same(network: Network) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            difference = find_difference(network)
        except NotTrained:
            reject()
    assert difference is None, (
        f"{difference}\nShow it again: PYTHONPATH=benchmarks python -c "
        f'"from fuzz.compare import find_difference; print(find_difference({network!r}))"'
    )
