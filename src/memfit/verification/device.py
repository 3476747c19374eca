"""Running a function in a fresh process on the device that is verified, with so much memory."""

from collections.abc import Callable
from typing import Any

from memfit.budgets.arena import arena_environment
from memfit.budgets.configuration import configure
from memfit.budgets.isolation import run_isolated
from memfit.budgets.nvml import gpus

_SECONDS = 600.0
_ARENA = "4GiB"  # far more than any of the trainings takes
# On a CPU threads run ops in another order in every step, and one step of thirty may peak 20% higher.
_ONE_ORDER = {"TF_NUM_INTEROP_THREADS": "1"}


def run_on_device(function: Callable[..., Any], *args: Any, memory: int | None = None) -> Any:
    """Runs `function(*args)` on the first GPU; where there is none, in an arena on the CPU, one op after the other.

    Args:
        function: What to run.
        *args: Its arguments.
        memory: Bytes that it may take there; as many as there are unless told.
    """
    if gpus():
        return run_isolated(_run_on_gpu, (memory, function, args), environment={}, timeout=_SECONDS)
    environment = arena_environment(memory or _ARENA) | _ONE_ORDER
    return run_isolated(function, args, environment=environment, timeout=_SECONDS)


def _run_on_gpu(memory: int | None, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Limits what TensorFlow takes of the first GPU, and runs there."""
    configure(memory=memory, visible=[0])
    return function(*args)
