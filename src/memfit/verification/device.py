"""Running a function in a fresh process on the device that is verified, with so much memory."""

import os
from collections.abc import Callable
from typing import Any

from memfit.budgets.configuration import configure
from memfit.budgets.isolation import isolated
from memfit.budgets.nvml import gpus

_SECONDS = 600.0
_ARENA = "4GiB"  # far more than any of the trainings takes


def run_on_device(function: Callable[..., Any], *args: Any, memory: int | None = None) -> Any:
    """Runs `function(*args)` on the first GPU, or in an arena on the CPU where there is none.

    Args:
        function: What to run.
        *args: Its arguments.
        memory: Bytes that it may take there; as many as there are unless told.
    """
    has_gpu = bool(gpus())
    arena = None if has_gpu else memory or _ARENA
    return isolated(_run, has_gpu, memory, function, args, memory=arena, timeout=_SECONDS)


def _run(has_gpu: bool, memory: int | None, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Limits what TensorFlow takes of the first GPU, and runs there; nothing is remembered from an earlier run."""
    os.environ["MEMFIT_CACHE"] = "0"
    if has_gpu:
        configure(memory=memory, visible=[0])
    return function(*args)
