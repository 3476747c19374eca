"""NVIDIA's GPUs as the driver sees them, through NVML: a thin adapter, because none was here to test with."""

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from memfit.budgets.memory import Kind, Memory
from memfit.sizes import Size

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class GpuProcess:
    """A process that computes on a GPU: its number, the GPU, and what it holds there, where the driver tells."""

    pid: int
    gpu: str
    used: Size | None


def gpus(environment: Mapping[str, str] = os.environ, library: Any = None) -> list[Memory]:
    """Returns the GPUs that CUDA would show this process, in CUDA's order as far as NVML can know it.

    Args:
        environment: Where CUDA_VISIBLE_DEVICES is looked up.
        library: The `pynvml` module; given only in tests.

    Returns:
        One entry a GPU; an empty list where there is no driver.
    """
    return _ask(_memory, environment, library)


def compute_capabilities() -> list[str]:
    """Returns the compute capabilities, such as "8.6", of the GPUs that CUDA would show this process."""
    return _ask(_compute_capability, os.environ, None)


def gpu_processes(library: Any = None) -> list[GpuProcess]:
    """Returns every process that computes on any GPU of this machine, whoever's it is."""
    return [process for processes in _ask(_processes, {}, library) for process in processes]


def _ask(
    question: Callable[[int, Any, Any], _Value], environment: Mapping[str, str], library: Any
) -> list[_Value]:
    """Returns the answer for each visible GPU; an empty list where there is no driver."""
    if library is None:
        library = importlib.import_module("pynvml")
    try:
        library.nvmlInit()
    except library.NVMLError:
        return []
    try:
        count = library.nvmlDeviceGetCount()
        handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        ids = [_text(library.nvmlDeviceGetUUID(handle)) for handle in handles]
        chosen = _visible(environment.get("CUDA_VISIBLE_DEVICES"), ids)
        return [question(position, handles[index], library) for position, index in enumerate(chosen)]
    except library.NVMLError:
        return []
    finally:
        library.nvmlShutdown()


def _visible(setting: str | None, ids: list[str]) -> list[int]:
    """The NVML indices that a CUDA_VISIBLE_DEVICES setting leaves visible.

    As CUDA does, everything behind the first entry that names no device is invisible.
    """
    if setting is None:
        return list(range(len(ids)))
    chosen: list[int] = []
    for entry in (part.strip() for part in setting.split(",")):
        if entry.isdigit() and int(entry) < len(ids):
            chosen.append(int(entry))
        elif entry.startswith("GPU-") and sum(known.startswith(entry) for known in ids) == 1:
            chosen.append(next(i for i, known in enumerate(ids) if known.startswith(entry)))
        else:
            break
    return chosen


def _memory(position: int, handle: Any, library: Any) -> Memory:
    info = library.nvmlDeviceGetMemoryInfo(handle)
    name = _text(library.nvmlDeviceGetName(handle))
    return Memory(f"GPU:{position} {name}", Size(int(info.total)), Size(int(info.free)), "NVML", Kind.GPU)


def _compute_capability(position: int, handle: Any, library: Any) -> str:
    major, minor = library.nvmlDeviceGetCudaComputeCapability(handle)
    return f"{major}.{minor}"


def _processes(position: int, handle: Any, library: Any) -> list[GpuProcess]:
    name = f"GPU:{position} {_text(library.nvmlDeviceGetName(handle))}"
    return [
        GpuProcess(
            int(process.pid),
            name,
            None if process.usedGpuMemory is None else Size(int(process.usedGpuMemory)),
        )
        for process in library.nvmlDeviceGetComputeRunningProcesses(handle)
    ]


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # older bindings give bytes
