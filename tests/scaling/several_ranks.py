"""Functions run as the ranks of a job: processes on loopback, forks that have TensorFlow imported."""

import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from prepared import run_forked


def run_ranks(function: Callable[..., Any], *args: Any, count: int = 2, **environment: str) -> list[Any]:
    """Runs `function(*args)` on every rank; returns their results in the order of the ranks."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]

    def run(rank: int) -> Any:
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
        settings = {"TF_ENABLE_ONEDNN_OPTS": "0", "TF_CONFIG": json.dumps(config), **environment}
        return run_forked(_join_and_run, function, args, **settings)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def _join_and_run(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    from memfit.scaling.communicator import join_cluster

    join_cluster()  # before anything else of TensorFlow, as `memfit run` does
    return function(*args)


def run_alone(function: Callable[..., Any], *args: Any) -> Any:
    """Runs `function(*args)` in one process."""
    return run_forked(function, *args, TF_ENABLE_ONEDNN_OPTS="0")
