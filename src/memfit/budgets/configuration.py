"""Telling TensorFlow, before it starts, how much memory it may take on each device."""

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from memfit.budgets.arena import arena_cap, arena_environment
from memfit.budgets.budget import Budget, budget
from memfit.budgets.memory import host_memory
from memfit.budgets.nvml import gpus
from memfit.compat.tf_runtime import is_initialised
from memfit.errors import InvalidInput, TensorFlowMissing, TooLate
from memfit.sizes import Size

_Limits: TypeAlias = int | str | Mapping[int, int | str] | None
_PLACE = "Call memfit.configure() at the top of the program, before anything else imports or uses TensorFlow."


def configure(
    memory: _Limits = None,
    growth: bool | None = None,
    allocator: Literal["bfc", "async"] = "bfc",
    visible: Sequence[int] | None = None,
) -> Budget:
    """Sets how TensorFlow takes memory in this process: growth, or a fixed limit, for every GPU or per GPU.

    Nothing is set unless everything can be. On a machine with no GPU, `memory` puts the process into the arena:
    TensorFlow's own allocator on the CPU with that cap.

    Args:
        memory: None for growth; a size such as "6GiB" or "80%" as the limit of every visible GPU; or a mapping
            from GPU index to size, such as {0: "6GiB", 1: "4GiB"}.
        growth: Whether GPUs take memory only as they need it. By default they do unless `memory` limits them:
            TensorFlow cannot do both.
        allocator: "bfc", TensorFlow's own, or "async", CUDA's `cudaMallocAsync`, which fragments less.
        visible: The indices of the GPUs to use; None for all of them.

    Returns:
        The budget that holds from now on.

    Raises:
        InvalidInput: If a value is impossible; the message names it.
        TooLate: If TensorFlow has already fixed what this call would set.
    """
    if allocator not in ("bfc", "async"):
        raise InvalidInput('`allocator` is "bfc" or "async"', received=allocator)
    if growth and memory is not None:
        raise InvalidInput(
            "TensorFlow forbids growth together with a fixed limit",
            received=f"growth=True, memory={memory!r}",
            remedy="Leave one of the two out",
        )
    if "tensorflow" not in sys.modules and not gpus():
        _configure_arena(memory, visible)
    else:
        _configure_gpus(memory, growth, allocator, visible)
    return budget()


def _configure_arena(memory: _Limits, visible: Sequence[int] | None) -> None:
    if isinstance(memory, Mapping) or visible:
        index = next(iter(memory)) if isinstance(memory, Mapping) and memory else (visible or [0])[0]
        raise InvalidInput(f"There is no GPU:{index}: this machine has no GPU", received=memory or visible)
    if memory is None:
        return
    total = host_memory().total
    size = Size(memory, of=total)
    if size > total:
        raise InvalidInput(f"The arena must fit into the host's memory, which is {total}", received=str(size))
    os.environ.update(arena_environment(size))


def _configure_gpus(
    memory: _Limits, growth: bool | None, allocator: str, visible: Sequence[int] | None
) -> None:
    try:
        config = importlib.import_module("tensorflow").config
    except ImportError as error:
        raise TensorFlowMissing("memfit.configure() on a machine with a GPU") from error
    devices = config.list_physical_devices("GPU")
    if not devices:
        _refuse_late_arena(memory, visible)
        return
    chosen = list(range(len(devices)) if visible is None else visible)
    limits = _check_limits(memory, chosen, len(devices))
    for index in chosen:
        if not limits and config.get_logical_device_configuration(devices[index]):
            raise InvalidInput(
                f"GPU:{index} already has a fixed limit, and TensorFlow forbids growth together with it",
                remedy="Set the limit through memfit.configure(memory=...) only",
            )
    if is_initialised():
        raise TooLate(f"TensorFlow has already initialised its GPUs, and their memory is fixed. {_PLACE}")
    if allocator == "async":
        os.environ["TF_GPU_ALLOCATOR"] = "cuda_malloc_async"
    if visible is not None:
        config.set_visible_devices([devices[index] for index in chosen], "GPU")
    for index in chosen:
        if index in limits:
            logical = config.LogicalDeviceConfiguration(memory_limit=limits[index] // 2**20)
            config.set_logical_device_configuration(devices[index], [logical])
        else:
            config.experimental.set_memory_growth(devices[index], growth is not False)


def _refuse_late_arena(memory: _Limits, visible: Sequence[int] | None) -> None:
    """Without a GPU and with TensorFlow imported, only what already holds can be asked for."""
    if memory is None and not visible:
        return
    cap = arena_cap()
    if not visible and isinstance(memory, int | str) and cap is not None:
        asked = Size(memory, of=host_memory().total)
        if asked // 2**20 == cap // 2**20:
            return
    raise TooLate(
        "There is no GPU, and TensorFlow has already been imported, so this process cannot become an arena: "
        f"its allocator and kernels are chosen at the import. {_PLACE}"
    )


def _check_limits(memory: _Limits, chosen: list[int], count: int) -> dict[int, Size]:
    """The limit of each chosen GPU of those there are; empty where none was asked for."""
    for index in chosen:
        if not 0 <= index < count:
            raise InvalidInput(
                f"There is no GPU:{index}: the GPUs here are 0 to {count - 1}", received=chosen
            )
    if memory is None:
        return {}
    asked = memory if isinstance(memory, Mapping) else dict.fromkeys(chosen, memory)
    for index in asked:
        if index not in chosen:
            raise InvalidInput(
                f"`memory` names GPU:{index}, which is not there or not visible", received=memory
            )
    for index in chosen:
        if index not in asked:
            raise InvalidInput(
                f"`memory` limits some GPUs but not GPU:{index}, and TensorFlow would let that one take everything",
                received=memory,
                remedy=f"Give GPU:{index} a limit too, or leave it out with visible=",
            )
    known = gpus()
    limits = {}
    for index, value in asked.items():
        total = known[index].total if index < len(known) else None
        limits[index] = Size(value, of=total)
        if limits[index] < 2**20:
            raise InvalidInput(
                f"The limit of GPU:{index} must be at least 1 MiB", received=str(limits[index])
            )
        if total is not None and limits[index] > total:
            raise InvalidInput(f"GPU:{index} has {total} in total", received=str(limits[index]))
    return limits
