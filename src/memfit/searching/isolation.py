"""Running one training of somebody else's search in a process of its own."""

import os
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle

from memfit.budgets.kept_server import kept_server
from memfit.errors import InvalidInput, MemfitError, ProcessDied
from memfit.searching.trial import DONE, OUT_OF_MEMORY
from memfit.searching.trial_process import describe, ran_out_of_memory
from memfit.searching.trial_server import Shared, start_server


class TrialEnded(MemfitError, RuntimeError):
    """A trial ran out of memory, or its process died: the search can go on without it."""


def run_apart(
    shared: Shared,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    respond: Callable[[bytes], bytes] | None = None,
) -> Any:
    """Runs `function(*args)` in a process of its own, forked from one that is kept for a minute.

    Args:
        shared: The memory it may take.
        function: What to run.
        args: Its arguments.
        respond: Answers what it asks.

    Raises:
        TrialEnded: If it ran out of memory, or its process died.
        InvalidInput: If something cannot be sent between the processes.
        Exception: Whatever else the function raised.
    """
    try:
        task = cloudpickle.dumps((function, args))
    except Exception as error:  # cloudpickle raises whatever an object's own pickling raises
        raise InvalidInput(
            f"The arguments of a trial must be picklable to be sent to its process ({error})",
            remedy="Pass NumPy arrays or file names, and build datasets inside the function that trains",
        ) from error
    # A process that was started before has the environment of that time.
    key = ("trials", tuple(sorted({**os.environ, **shared.environment}.items())))
    with kept_server(key, partial(start_server, shared)) as server:
        try:
            status, value = server.run(_run, (task,), respond=respond)
        except ProcessDied as died:
            raise TrialEnded(str(ProcessDied(died.exit_code, "The trial's process"))) from died
    if status == OUT_OF_MEMORY:
        raise TrialEnded(f"Out of memory: {value}")
    return value


def _run(task: bytes) -> tuple[str, Any]:
    try:
        function, args = pickle.loads(task)
        return DONE, function(*args)
    except Exception as error:
        if not ran_out_of_memory(error):
            raise
        return OUT_OF_MEMORY, describe(error, OUT_OF_MEMORY)
