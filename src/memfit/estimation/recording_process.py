"""The process that recordings are forked from, kept for a while: its imports take longer than most recordings."""

import atexit
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from memfit.budgets.arena import arena_environment
from memfit.budgets.fork_server import ForkServer
from memfit.budgets.isolation import Result
from memfit.budgets.memory import host_memory
from memfit.estimation.cache import settings

# What a recording needs; it takes 2 to 4 s to import.
_MODULES = ("tensorflow", "keras", "memfit.estimation.recording.record")
_IDLE_SECONDS = 60.0


@dataclass
class _Kept:
    """A process, what it depends on, how many use it, and what ends it when none has for a while."""

    server: ForkServer
    key: Any
    users: int = 0
    end: threading.Timer | None = None


_kept: list[_Kept] = []
_lent: list["Recordings"] = []
_lock = threading.Lock()


class Recordings(Protocol):
    """What runs a function in a process of its own that has TensorFlow."""

    def run(
        self, function: Callable[..., Result], args: tuple[Any, ...], *, timeout: float | None = None
    ) -> Result:
        """Runs `function(*args)` there; what it takes and raises is as in `memfit.isolated`."""


def lend(recordings: Recordings) -> None:
    """Lets all recordings of this process be made by `recordings`, as in a trial, whose caller has one for all."""
    _lent.append(recordings)


@contextmanager
def recording_process() -> Iterator[Recordings]:
    """Gives a process that has TensorFlow imported or is about to: a new one, or one that was used a minute ago."""
    if _lent:
        yield _lent[-1]
        return
    kept = _borrow()
    try:
        yield kept.server
    finally:
        _give_back(kept)


def _borrow() -> _Kept:
    key = (os.getpid(), settings(), tuple(sys.path), Path.cwd())
    with _lock:
        kept = next((kept for kept in _kept if kept.key == key), None)
        if kept is None:
            kept = _Kept(start_recording_process(), key)
            _kept.append(kept)
        if kept.end is not None:
            kept.end.cancel()
        kept.users += 1
    return kept


def _give_back(kept: _Kept) -> None:
    with _lock:
        kept.users -= 1
        if not kept.users:
            kept.end = threading.Timer(_IDLE_SECONDS, _end, [kept])
            kept.end.daemon = True
            kept.end.start()


def _end(kept: _Kept) -> None:
    with _lock:
        if kept.users or kept not in _kept:
            return
        _kept.remove(kept)
    kept.server.close()


@atexit.register
def end_recording_processes() -> None:
    """Ends the processes that nobody uses now, instead of a minute after their last use."""
    for kept in list(_kept):
        if kept.key[0] == os.getpid():  # not a parent's, of which this process is a copy
            _end(kept)


def start_recording_process() -> ForkServer:
    """Starts a process to record in, for a caller that ends it."""
    # Generous, but never more than the host has: the arena's cap is only an upper bound.
    environment = arena_environment(max(2**30, int(host_memory().free)))
    return ForkServer(_MODULES, environment | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"})
