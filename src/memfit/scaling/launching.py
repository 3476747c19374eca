"""The ranks of one machine: what each of N processes is told, and waiting for all of them, without end for none.

Each process has a GPU of its own, or on a machine without one an arena of its own, and a `TF_CONFIG` whose
addresses are on the loopback interface.
"""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import psutil

from memfit.budgets.arena import arena_cap, arena_environment
from memfit.budgets.nvml import gpus
from memfit.errors import InvalidInput
from memfit.scaling.cluster import LAUNCHER, RANK, Cluster
from memfit.scaling.survivors import LOST_A_RANK

_LOOPBACK = "127.0.0.1"
_LOOK = 0.05  # seconds between two looks at the processes
# Once a rank has ended, the others notice within 10 s (TensorFlow's heartbeats) and keep their states.
_NOTICE = 20.0
# A state of gigabytes takes its time on a slow disk; a write that never ends must not keep the others waiting.
_WRITING = 300.0
# Once rank 0 has run its script to the end, the others have met it for the last time.
_FOLLOW = 300.0


class Ending(NamedTuple):
    """How the ranks of a job ended.

    Attributes:
        rank: The rank that decides what the job's end means: the one that ended the others, or rank 0.
        code: Its exit code, as `subprocess` gives it; None where it did not answer any more and was killed.
    """

    rank: int
    code: int | None


def rank_environments(
    count: int, memory: int | str | None = None, environment: Mapping[str, str] = os.environ
) -> list[dict[str, str]]:
    """Returns the variables that make N processes of this machine the ranks of one job, those of rank 0 first.

    Args:
        count: How many ranks.
        memory: What each may take. On a machine without GPUs each is put into an arena of that size.
        environment: Where GPUs and an arena are looked up.

    Raises:
        InvalidInput: If there are fewer GPUs than ranks, or less than one rank.
    """
    if count < 1:
        raise InvalidInput("--ranks must be at least 1", received=f"--ranks {count}")
    if count == 1:
        return [{}]  # a process by itself keeps the device and the allocator that it has
    devices = _own_devices(count, memory, environment)
    addresses = tuple(f"{_LOOPBACK}:{port}" for port in _free_ports(count))
    return [
        {
            **device,
            "TF_CONFIG": Cluster(rank, addresses, "memfit run").to_tf_config(),
            LAUNCHER: "memfit run",
            RANK: str(rank),
        }
        for rank, device in enumerate(devices)
    ]


def await_ranks(processes: Sequence[Any], is_writing: Callable[[int], bool] = lambda rank: False) -> Ending:
    """Waits until all ranks have ended; where one fails, the others get the time to keep their states, no more.

    Args:
        processes: Of all ranks, in their order, with `pid`, `poll()` and `kill()` as those of `subprocess`.
        is_writing: Whether a rank is just writing its state.
    """
    codes: dict[int, int | None] = {}
    culprit: int | None = None
    changed = time.monotonic()
    while len(codes) < len(processes):
        for rank, process in enumerate(processes):
            if rank not in codes and (code := process.poll()) is not None:
                codes[rank], changed = code, time.monotonic()
                if culprit is None and code not in (0, LOST_A_RANK):
                    culprit = rank
        waited = time.monotonic() - changed
        for rank in sorted(set(range(len(processes))) - set(codes)):
            if _is_overdue(codes, processes[rank].pid, waited, partial(is_writing, rank)):
                processes[rank].kill()
                codes[rank] = None
                culprit = rank if culprit is None else culprit
        time.sleep(_LOOK)
    lost = next((rank for rank, code in sorted(codes.items()) if code != 0), 0)
    if codes[0] == 0:  # it has met the others for the last time: whatever they did then changes no result
        lost = 0
    elif culprit is not None:
        lost = culprit
    return Ending(lost, codes[lost])


def _is_overdue(
    codes: Mapping[int, int | None], pid: int, waited: float, is_writing: Callable[[], bool]
) -> bool:
    """Whether a rank that still runs is waited for no longer."""
    if not any(code != 0 for code in codes.values()):
        return 0 in codes and waited > _FOLLOW
    if is_writing():
        return waited > _WRITING
    return waited > _NOTICE or _is_stopped(pid)


def _is_stopped(pid: int) -> bool:
    """Whether a process stands still (SIGSTOP): it could not notice anything."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return False


def _own_devices(
    count: int, memory: int | str | None, environment: Mapping[str, str]
) -> list[dict[str, str]]:
    visible = len(gpus(environment))
    if not visible:
        arena: dict[str, str] = {}
        if memory is not None and not str(memory).strip().endswith("%") and arena_cap(environment) is None:
            arena = arena_environment(memory)
        return [dict(arena) for _ in range(count)]
    if visible < count:
        raise InvalidInput(
            "Each rank needs a GPU of its own",
            received=f"--ranks {count}, and {visible} visible GPU{'s' * (visible > 1)}",
            remedy=f"Use --ranks {visible}, or set CUDA_VISIBLE_DEVICES= to train on the CPU",
        )
    named = environment.get("CUDA_VISIBLE_DEVICES")
    names = list(map(str, range(visible))) if named is None else [name.strip() for name in named.split(",")]
    return [{"CUDA_VISIBLE_DEVICES": name} for name in names[:count]]


def _free_ports(count: int) -> list[int]:
    """Returns ports that are free now. TensorFlow opens them itself, so another program may be quicker."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((_LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]
