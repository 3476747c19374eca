"""What tests of steps share."""

from collections.abc import Iterator

import keras
import pytest


@pytest.fixture
def float64() -> Iterator[None]:
    """Lets networks compute in float64, where rounding stands out less."""
    for dtype in ("float64", "float32"):
        keras.config.set_floatx(dtype)
        keras.config.set_dtype_policy(dtype)
        if dtype == "float64":
            yield
