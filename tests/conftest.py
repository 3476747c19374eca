"""What all tests share."""

import os
import sys
from collections.abc import Iterator

import cloudpickle
import pytest

os.environ["MEMFIT_CACHE"] = "0"  # an estimate is made, not remembered, unless a test is about that


@pytest.fixture(autouse=True, scope="module")
def functions_of_this_file_can_be_isolated(request: pytest.FixtureRequest) -> Iterator[None]:
    """Lets `memfit.isolated` run functions of a test file, which is no importable module, by sending their code."""
    module = sys.modules[request.module.__name__]
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)
