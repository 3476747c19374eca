"""Processes that forks are made of, kept for a while: their imports take longer than most tasks."""

import atexit
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memfit.budgets.fork_server import ForkServer

_IDLE_SECONDS = 60.0


@dataclass
class _Kept:
    """A process, what it depends on, how many use it, and what ends it when none has for a while."""

    server: ForkServer
    key: Any
    users: int = 0
    end: threading.Timer | None = None


_kept: list[_Kept] = []
_lock = threading.Lock()


@contextmanager
def kept_server(key: Any, start: Callable[[], ForkServer]) -> Iterator[ForkServer]:
    """Gives a process to fork tasks from: a new one, or one that was used a minute ago.

    Args:
        key: What it depends on, beside the folder and the search path of this process.
        start: Starts one.
    """
    kept = _borrow(key, start)
    try:
        yield kept.server
    finally:
        _give_back(kept)


def _borrow(key: Any, start: Callable[[], ForkServer]) -> _Kept:
    key = (os.getpid(), key, tuple(sys.path), Path.cwd())
    with _lock:
        kept = next((kept for kept in _kept if kept.key == key), None)
        if kept is None:
            kept = _Kept(start(), key)
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
def end_kept_servers() -> None:
    """Ends the processes that nobody uses now, instead of a minute after their last use."""
    for kept in list(_kept):
        if kept.key[0] == os.getpid():  # not a parent's, of which this process is a copy
            _end(kept)
