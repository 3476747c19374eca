"""The arena: TensorFlow's own BFC allocator on the CPU with a hard cap, a small device that every machine has."""

import os
from collections.abc import Mapping

from memfit.errors import InvalidInput
from memfit.sizes import Size

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
        raise InvalidInput("An arena must have at least 1 MiB", received=str(size))
    return {**_SWITCHES, _CAP: str(size // _MIB)}


def arena_cap(environment: Mapping[str, str] = os.environ) -> Size | None:
    """Returns the cap of the arena that `environment` describes, or None outside of one."""
    cap = environment.get(_CAP, "")
    if environment.get("TF_CPU_ALLOCATOR_USE_BFC", "").lower() not in {"1", "true"} or not cap.isdigit():
        return None
    return Size(int(cap) * _MIB)


def pieces_left(memory: int, peak: int) -> tuple[int, ...]:
    """Returns how many bytes an arena's allocator may be able to take as one more region, the best case first.

    It takes regions that double, beginning with 2 MiB. For a peak of what was in use up to now it has mostly taken
    not more than twice that; with gaps in its last regions one more (ResNet50: 254 MiB for a peak of 109).
    """
    doubled = 2
    while doubled < peak / _MIB:
        doubled = 2 * doubled + 2
    lefts = ((memory - 2 * peak) // _MIB - 4, memory // _MIB - (2 * doubled + 2) - 2)
    return tuple(left * _MIB for left in lefts if left > 0)
