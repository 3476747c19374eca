"""Where a training ran: versions, the machine, and environment variables, by allow-list.

A record is shown to others and attached to bug reports. So nothing gets into it that may be a secret: no arguments,
no folders, no names of machines or users, and only those environment variables that change memory or kernels.
"""

import hashlib
import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

from memfit.budgets.budget import budget
from memfit.budgets.diagnosis import WATCHED

# Beside what the doctor watches: how many threads compute, and memfit's own switches.
_ALSO = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "MEMFIT_CACHE_LIMIT")
# LD_PRELOAD has folders in it.
_ALLOWED = tuple(name for name in (*WATCHED, *_ALSO) if name != "LD_PRELOAD")


def environment_variables() -> dict[str, str]:
    """Returns the variables of the allow-list that are set."""
    return {name: os.environ[name] for name in _ALLOWED if name in os.environ}


def machine_facts() -> dict[str, Any]:
    """Returns the system, the processors, and the memories with their totals."""
    now = budget()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": cores,
        "memories": [
            {"name": memory.name, "total": int(memory.total), "kind": str(memory.kind)}
            for memory in (*now.devices, now.host)
        ],
    }


@cache
def machine_id() -> str:
    """Returns what tells this machine, as it was started, from others; a hash, so that its name stays unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        boot = ""
    return hashlib.sha256(f"{platform.node()} {boot}".encode()).hexdigest()[:12]
