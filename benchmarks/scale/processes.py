"""A function in N fresh processes on loopback, which are the ranks of one job."""

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from machine import SMOKE
from memfit.scaling.launching import rank_environments

_SECONDS = 900.0  # far more than any of these takes
_CODE = """
import pickle, sys
sys.path[:0] = {path!r}
from memfit.scaling.communicator import join_cluster
if {joins!r}:
    join_cluster()
import {module} as module
result = module.{name}(*pickle.loads({args!r}))
open({file!r}, "wb").write(pickle.dumps(result))
"""


def run_ranks(
    function: Callable[..., Any], *args: Any, count: int, memory: str | None = None, joins: bool = True
) -> list[Any]:
    """Runs a function of a module on every rank; returns their results. A smoke run has one rank, this process.

    Args:
        memory: The arena of each rank.
        joins: Whether ranks join as memfit's; otherwise the function makes a strategy of its own.
    """
    if SMOKE:
        return [function(*args)]
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder, str(rank))) for rank in range(count)]
        processes = []
        for file, environment in zip(files, rank_environments(count, memory), strict=True):
            code = _CODE.format(
                path=sys.path,
                joins=joins,
                module=function.__module__,
                name=function.__name__,
                args=pickle.dumps(args),
                file=file,
            )
            quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
            processes.append(
                subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **quiet, **environment})
            )
        try:
            for process in processes:
                process.wait(_SECONDS)
        finally:
            for process in processes:
                process.kill()
        # Written by the processes that were just started, in a folder of this process.
        return [pickle.loads(Path(file).read_bytes()) for file in files]
