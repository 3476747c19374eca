"""A canary uses one wrapper on a small real thing, and says whose private name is gone when it no longer works."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest

CANARIES: list["Canary"] = []
_PACKAGES = {
    "keras": ("keras",),
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "numpy": ("numpy",),
    "jax": ("jax",),
}


@dataclass(frozen=True)
class Canary:
    """What one test stands for.

    Attributes:
        wrapper: The wrapper's module and name, such as "keras_layers.all_layers".
        names: The private names it needs, such as "Layer._flatten_layers".
    """

    wrapper: str
    names: tuple[str, ...]


def canary(wrapper: str, *names: str, of: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Lets a test's failure say which private name of which library's version is gone.

    Args:
        wrapper: The wrapper in `memfit.compat`, such as "keras_layers.all_layers".
        names: The private names that it needs.
        of: The library that they belong to.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        CANARIES.append(Canary(wrapper, names))

        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            try:
                test(*args, **kwargs)
            except Exception as error:
                needs = f"memfit.compat.{wrapper} needs {'it' if len(names) == 1 else 'them'}"
                gone = f"{_installed(of)}: {' or '.join(names)} is gone or has changed; {needs}"
                pytest.fail(f"{gone} ({type(error).__name__}: {error})")

        return run

    return decorate


def _installed(library: str) -> str:
    for package in _PACKAGES[library]:
        try:
            return f"{library} {version(package)}"
        except PackageNotFoundError:
            continue
    return library
