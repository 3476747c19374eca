"""One watch at a time: beginning and ending it, without importing Keras or TensorFlow."""

import threading

from memfit.errors import InvalidInput
from memfit.training.leaks.leak import Leaks
from memfit.training.leaks.watcher import Watcher

_lock = threading.Lock()
_running: list[Watcher] = []


def begin() -> Watcher:
    """Begins to watch this process.

    Raises:
        InvalidInput: If it is watched already.
    """
    with _lock:
        if _running:
            raise InvalidInput(
                "A watch cannot run inside another one: both would watch the same memory",
                remedy="Watch only the outer loop, and not in a script that runs under `memfit run --watch`",
            )
        _running.append(Watcher())
        return _running[0]


def end(watcher: Watcher) -> Leaks:
    """Ends a watch and returns what leaks; nothing where it has ended before."""
    with _lock:
        if watcher not in _running:
            return Leaks()
        _running.remove(watcher)
    return watcher.stop()
