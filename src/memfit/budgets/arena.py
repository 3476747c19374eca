"""The arena: TensorFlow's own BFC allocator on the CPU with a hard cap, a small device that every machine has."""

import os
from collections.abc import Mapping

from memfit.budgets.errors import InvalidInput
from memfit.budgets.size import Size

_MIB = 2**20
# oneDNN kernels do not check their allocations: over the cap they end the process with SIGSEGV instead of
# raising ResourceExhaustedError. So the arena turns them off.
_SWITCHES = {"TF_CPU_ALLOCATOR_USE_BFC": "true", "TF_ENABLE_ONEDNN_OPTS": "0"}
_CAP = "TF_CPU_BFC_MEM_LIMIT_IN_MB"


def arena_environment(memory: int | str) -> dict[str, str]:
    """Returns the environment variables that put a process into an arena of `memory`.

    They must be there before TensorFlow is imported. TensorFlow counts the cap in whole MiB, so a size is
    rounded down.

    Raises:
        InvalidInput: If `memory` is no size or is less than 1 MiB.
    """
    size = Size(memory)
    if size < _MIB:
        raise InvalidInput("An arena has at least 1 MiB", received=str(size))
    return {**_SWITCHES, _CAP: str(size // _MIB)}


def arena_cap(environment: Mapping[str, str] = os.environ) -> Size | None:
    """Returns the cap of the arena that `environment` describes, or None outside of one."""
    cap = environment.get(_CAP, "")
    if environment.get("TF_CPU_ALLOCATOR_USE_BFC", "").lower() not in {"1", "true"} or not cap.isdigit():
        return None
    return Size(int(cap) * _MIB)


def left_for_one_piece(memory: int, peak: int) -> int:
    """Returns how many bytes an arena's allocator can take as one more region, in whole MiB; 0 for none.

    It takes regions that double: for a peak of what was in use up to now, not more than twice that was taken. The
    smallest region has 2 MiB.
    """
    return max(0, (memory - 2 * peak) // _MIB - 4) * _MIB
