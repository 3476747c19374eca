"""Noticing that a script trains in a custom loop: its first optimizer update outside of `fit`."""

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from memfit.survival.intercepting import intercept

_PACKAGE = Path(__file__).parents[1]
# Frames of memfit between a script and Keras: what stands in for Keras's methods.
_BETWEEN = {"intercepting.py", "custom_loops.py"}
_RUNS_SCRIPT = "scripts.py"


def before_first_update(keras: Any, script: Path, act: Callable[[str], None]) -> Callable[[], None]:
    """Acts once before the first optimizer update that no `fit` makes.

    `train_on_batch` counts as a loop of one's own: memfit sees no batches there. An update that the script writes
    without an optimizer of Keras is not noticed.

    Args:
        keras: The module.
        script: The script.
        act: Called with the place, such as "line 31"; what it raises ends the script.

    Returns:
        What stops looking.
    """
    done = False

    def see(place: str, update: Callable[[], Any]) -> Any:
        nonlocal done
        if not done:
            done = True
            act(place)
        return update()

    return intercept_updates(keras, script, see)


def intercept_updates(
    keras: Any, script: Path, see: Callable[[str, Callable[[], Any]], Any]
) -> Callable[[], None]:
    """Lets every optimizer update that no `fit` makes go to a handler.

    Args:
        keras: The module.
        script: The script.
        see: Called with the place and what does the update, and returns its result. An update that is traced is
            seen once for all of them.

    Returns:
        What stops looking.
    """
    from tensorflow import autograph

    def handle(original: Any, optimizer: Any, **arguments: Any) -> Any:
        update = functools.partial(original, optimizer, **arguments)
        frame = inspect.currentframe()
        return update() if _is_called_by_memfit(frame) else see(_line_of(script, frame), update)

    convert = autograph.experimental.do_not_convert
    return intercept(keras.optimizers.Optimizer, "apply", handle, decorate=convert)


def _is_called_by_memfit(frame: FrameType | None) -> bool:
    """Whether a training step or a search of memfit is among the callers, up to where the script begins.

    A strategy traces the steps of its replicas in threads of their own, for which the main thread waits.
    """
    if threading.current_thread() is not threading.main_thread():
        main = sys._current_frames().get(threading.main_thread().ident or 0)
        return _has_memfit(frame) or _has_memfit(main)
    return _has_memfit(frame)


def _has_memfit(frame: FrameType | None) -> bool:
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(_PACKAGE) and file.name not in _BETWEEN:
            return file.name != _RUNS_SCRIPT
        frame = frame.f_back
    return False


def _line_of(script: Path, frame: FrameType | None) -> str:
    """Returns the script's own line among the callers; a function that AutoGraph rewrote has a file of its own."""
    name = str(script.absolute())
    while frame is not None:
        if frame.f_code.co_filename == name:
            return f"line {frame.f_lineno}"
        frame = frame.f_back
    return "a module of it"
