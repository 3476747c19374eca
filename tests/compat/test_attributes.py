"""Other attributes for an object of Keras's, for a while."""

from typing import Any

import pytest

from memfit.compat.attributes import overridden


class Tracking:
    """An object that notices what is set on it, as Keras's do."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise AssertionError(f"{name} was tracked")

    def method(self) -> str:
        return "of its class"


def test_what_an_object_has_itself_or_from_its_class_comes_back_after_an_error():
    thing = Tracking()
    vars(thing)["own"] = 1

    def fail() -> None:
        with overridden(thing, own=2, method=lambda: "another"):
            assert (thing.own, thing.method()) == (2, "another")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert vars(thing) == {"own": 1}
    assert thing.method() == "of its class"
