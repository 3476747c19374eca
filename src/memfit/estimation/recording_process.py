"""The process that recordings are forked from, kept for a while: its imports take longer than most recordings."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from memfit.budgets.arena import arena_environment
from memfit.budgets.fork_server import ForkServer
from memfit.budgets.isolation import Result
from memfit.budgets.kept_server import kept_server
from memfit.budgets.memory import host_memory
from memfit.estimation.cache import settings

# What a recording needs; it takes 2 to 4 s to import.
_MODULES = ("tensorflow", "keras", "memfit.estimation.recording.record")


class Recordings(Protocol):
    """What runs a function in a process of its own that has TensorFlow."""

    def run(
        self, function: Callable[..., Result], args: tuple[Any, ...], *, timeout: float | None = None
    ) -> Result:
        """Runs `function(*args)` there; what it takes and raises is as in `memfit.isolated`."""


def lend(recordings: Recordings) -> None:
    """Lets all recordings of this process be made by `recordings`, as in a trial, whose caller has one for all."""
    _lent.append(recordings)


_lent: list[Recordings] = []


@contextmanager
def recording_process() -> Iterator[Recordings]:
    """Gives a process that has TensorFlow imported or is about to: a new one, or one that was used a minute ago."""
    if _lent:
        yield _lent[-1]
        return
    with kept_server(("recordings", settings()), start_recording_process) as server:
        yield server


def start_recording_process() -> ForkServer:
    """Starts a process to record in, for a caller that ends it."""
    # Generous, but never more than the host has: the arena's cap is only an upper bound.
    environment = arena_environment(max(2**30, int(host_memory().free)))
    return ForkServer(_MODULES, environment | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"})
