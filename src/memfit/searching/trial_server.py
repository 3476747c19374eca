"""The process that trials are forked from: it has TensorFlow and Keras imported, and has run nothing of them."""

import importlib.util
import os
from dataclasses import dataclass

from memfit.budgets.arena import arena_environment
from memfit.budgets.budget import budget
from memfit.budgets.fork_server import ForkServer
from memfit.budgets.memory import Kind, host_memory
from memfit.errors import InvalidInput
from memfit.sizes import Size


@dataclass(frozen=True)
class Shared:
    """The memory that trials share.

    Attributes:
        size: Bytes for all of them together.
        source: Where that figure came from.
        kind: What it belongs to.
        environment: What puts a process into it.
    """

    size: Size
    source: str
    kind: Kind
    environment: dict[str, str]

    @property
    def on_host(self) -> bool:
        """Whether it is the host's, of which a process takes more than its tensors."""
        return self.kind in (Kind.HOST, Kind.CONTAINER)


def find_memory(memory: int | str | None) -> Shared:
    """Returns what trials may take together: what was asked for, or what is free on the device that trains.

    On a machine without a GPU a size means an arena of that size for each process. On a GPU the processes take
    what they need of the card: a fixed limit would be taken by the first of them as a whole.

    Raises:
        InvalidInput: If it is no size, or more than there is.
    """
    there = budget().device
    environment = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"} if there.kind is Kind.GPU else {}
    if memory is None:
        return Shared(there.free, f"free now: {there.name}, {there.source}", there.kind, environment)
    on_gpu = there.kind is Kind.GPU
    total = there.total if on_gpu else host_memory().total
    size = Size(memory, of=total)
    if size > total:
        raise InvalidInput(f"`memory` for all trials together cannot exceed {total}", received=str(size))
    if on_gpu:
        return Shared(size, "as asked", Kind.GPU, environment)
    return Shared(size, "as asked, an arena", Kind.ARENA, arena_environment(size))


def start_server(shared: Shared) -> ForkServer:
    """Starts the process that trials are forked from."""
    modules = [name for name in ("tensorflow", "keras") if importlib.util.find_spec(name) is not None]
    # TensorFlow's log of an out-of-memory has a line for every chunk; the trial's error says what matters.
    quiet = {} if "TF_CPP_MIN_LOG_LEVEL" in os.environ else {"TF_CPP_MIN_LOG_LEVEL": "2"}
    return ForkServer([*modules, "memfit.searching.trial_process"], {**shared.environment, **quiet})
