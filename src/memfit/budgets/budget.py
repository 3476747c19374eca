"""The budget: the bytes a job may use on its devices and on the host, each with where the figure came from."""

import sys
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from memfit.budgets.arena import arena_cap
from memfit.budgets.memory import Kind, Memory, host_memory
from memfit.budgets.nvml import gpus
from memfit.compat.tf_runtime import is_initialised
from memfit.showing import Shown
from memfit.sizes import Size
from memfit.tables import table


class Count(NamedTuple):
    """What TensorFlow's allocator has handed out: bytes in use now, and the most since it was last reset."""

    current: Size
    peak: Size


def read_count(device: str) -> Count | None:
    """Returns the count of a device such as "GPU:0"; None where its allocator does not count.

    A CPU's does in an arena and, by chance, with oneDNN, but not without either. TensorFlow has to be imported, and
    is initialised by this.
    """
    try:
        info = sys.modules["tensorflow"].config.experimental.get_memory_info(device)
    except ValueError:
        return None
    return Count(Size(int(info["current"])), Size(int(info["peak"])))


@dataclass(frozen=True, repr=False)
class Budget(Shown):
    """What memory there is.

    Attributes:
        devices: The GPUs, or the arena; empty on a machine that trains in the host's memory.
        host: The host's RAM, or the cgroup's share of it.
    """

    devices: tuple[Memory, ...]
    host: Memory

    @property
    def device(self) -> Memory:
        """The memory that a training on one device uses: the first device's, or the host's."""
        return self.devices[0] if self.devices else self.host

    def __repr__(self) -> str:
        rows = [[m.name, m.total, m.free, m.source] for m in (*self.devices, self.host)]
        return table(rows, head=["memory", "total", "free", "source"], right=[1, 2])

    def to_json(self) -> dict[str, Any]:
        """Returns the budget as plain data, sizes in bytes."""
        return {"devices": [device.to_json() for device in self.devices], "host": self.host.to_json()}


def budget() -> Budget:
    """Returns the memory that this process may use, as it is now.

    It neither imports nor initialises TensorFlow: where TensorFlow is running already its allocator is asked,
    otherwise the driver (NVML), the arena's cap, and the host's files are.

    Example:
        >>> budget().host.total > 0
        True
    """
    return Budget(tuple(_devices()), host_memory())


def _devices() -> list[Memory]:
    present = gpus()
    if present:
        return [_limit(memory, index) for index, memory in enumerate(present)]
    cap = arena_cap()
    if cap is None:
        return []
    used = _allocated("CPU:0")
    source = "arena's cap" if used is None else "arena's cap, TensorFlow's allocator"
    return [Memory("arena", cap, Size(max(cap - (used or 0), 0)), source, Kind.ARENA)]


def _limit(memory: Memory, index: int) -> Memory:
    """The GPU with the limit that TensorFlow was given for it, where it was given one."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        return memory
    physical = tensorflow.config.list_physical_devices("GPU")
    if index >= len(physical):
        return memory
    logical = tensorflow.config.get_logical_device_configuration(physical[index])
    if not logical or logical[0].memory_limit is None:
        return memory
    limit = Size(int(logical[0].memory_limit) * 2**20)
    free = Size(max(min(limit - (_allocated(f"GPU:{index}") or 0), memory.free), 0))
    return replace(memory, total=limit, free=free, source="TensorFlow's limit, NVML")


def _allocated(device: str) -> int | None:
    """What TensorFlow's allocator holds; None where it does not count, or asking would initialise TensorFlow."""
    count = read_count(device) if is_initialised() else None
    return None if count is None else count.current
