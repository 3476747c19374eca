"""Random networks, others every day: memfit's steps against stock Keras. `make fuzz` compares more of them."""

import datetime
import warnings

import pytest
from hypothesis import HealthCheck, Phase, given, reject, seed, settings

from fuzz.compare import NotTrained, find_difference
from fuzz.networks import Network, networks

TODAY = datetime.date.today().toordinal()


@pytest.mark.filterwarnings("ignore::UserWarning")
@seed(TODAY)
@settings(
    max_examples=25,
    deadline=None,
    database=None,
    phases=[Phase.generate],  # `make fuzz` shrinks
    suppress_health_check=list(HealthCheck),
)
@given(networks())
def test_random_networks_train_as_in_stock_keras(network: Network):
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
