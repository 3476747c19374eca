"""Running a script up to its first `fit()`: what it would train, with what arguments, without training."""

import inspect
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memfit.budgets.errors import InvalidInput


@dataclass(frozen=True)
class FitCall:
    """The first call of `fit` that a script makes.

    Attributes:
        model: The model.
        arguments: All arguments of `fit` by name, those left out with their defaults.
    """

    model: Any
    arguments: dict[str, Any]


class _Reached(BaseException):
    """Ends the script at its first fit; no `except Exception` of the script's stops it."""

    def __init__(self, call: FitCall) -> None:
        self.call = call


def first_fit(script: str | Path, argv: Sequence[str] = ()) -> FitCall:
    """Runs a script in this process until it calls `keras.Model.fit` or `memfit.fit`, and returns that call.

    Args:
        script: The script's path.
        argv: Its arguments.

    Raises:
        InvalidInput: If there is no such script, or it ends without calling `fit`.
        Exception: Whatever the script itself raises.
    """
    path = Path(script)
    if not path.is_file():
        raise InvalidInput("There is no such script", received=str(script), remedy="Check the path")
    try:
        with _fit_replaced(), _as_main(path, argv):
            runpy.run_path(str(path), run_name="__main__")
    except _Reached as reached:
        return reached.call
    except SystemExit as end:
        raise _no_fit(path, f"it ended with exit code {end.code}") from None
    raise _no_fit(path, "it ran to its end")


def _no_fit(path: Path, how: str) -> InvalidInput:
    return InvalidInput(
        f"The script must call model.fit(...) or memfit.fit(model, ...), and {how} without it",
        received=str(path),
        remedy="Scripts with a training loop of their own cannot be read this way",
    )


@contextmanager
def _fit_replaced() -> Iterator[None]:
    import keras

    import memfit

    stock = keras.Model.fit

    def caught(model: Any, *args: Any, **kwargs: Any) -> Any:
        raise _Reached(FitCall(model, _bound(stock, model, args, kwargs)))

    keras.Model.fit = caught
    before = vars(memfit).get("fit")
    # `memfit.fit` takes the model first and then what `Model.fit` takes: the same function stands in for both.
    vars(memfit)["fit"] = caught
    try:
        yield
    finally:
        keras.Model.fit = stock
        if before is None:
            del vars(memfit)["fit"]
        else:
            vars(memfit)["fit"] = before


def _bound(fit: Callable[..., Any], model: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """All arguments by name; those that only `memfit.fit` has (memory, plan) are kept as well."""
    signature = inspect.signature(inspect.unwrap(fit))
    known = {name: value for name, value in kwargs.items() if name in signature.parameters}
    bound = signature.bind(model, *args, **known)
    bound.apply_defaults()
    named = {name: value for name, value in bound.arguments.items() if name != "self"}
    return {**named, **kwargs}


@contextmanager
def _as_main(path: Path, argv: Sequence[str]) -> Iterator[None]:
    """Lets the script see the arguments and the import path that `python script` would give it."""
    before = sys.argv, sys.path[:]
    sys.argv = [str(path), *argv]
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before[0], before[1]
