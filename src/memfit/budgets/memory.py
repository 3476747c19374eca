"""One memory that is there: its total, what is free of it, and who says so; and that of the host."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from memfit.sizes import Size, to_plain


class _Cgroups(NamedTuple):
    """Where a version of cgroups keeps what."""

    mount: str
    controller: str  # as /proc/self/cgroup calls it
    limit: str
    use: str
    cache: str  # in memory.stat
    shared: str  # of the cache: tmpfs and shared memory, which cannot be dropped


_VERSIONS = {
    "v2": _Cgroups("sys/fs/cgroup", "", "memory.max", "memory.current", "file", "shmem"),
    "v1": _Cgroups(
        mount="sys/fs/cgroup/memory",
        controller="memory",
        limit="memory.limit_in_bytes",
        use="memory.usage_in_bytes",
        cache="total_cache",
        shared="total_shmem",
    ),
}


class Kind(StrEnum):
    """What a memory belongs to."""

    GPU = "gpu"
    ARENA = "arena"
    HOST = "host"
    CONTAINER = "container"


@dataclass(frozen=True)
class Memory:
    """The memory of one device or of the host.

    Attributes:
        name: What it belongs to, such as "GPU:0 NVIDIA A10G", "arena" or "host".
        total: All of it that this process could use.
        free: What of that is not in use now.
        source: Where the two figures come from.
        kind: Whether it is a GPU's, the arena's, the host's, or a container's share of the host's (a cgroup).
    """

    name: str
    total: Size
    free: Size
    source: str
    kind: Kind = Kind.HOST

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as plain data, sizes in bytes."""
        return to_plain(self)


def host_memory(root: Path = Path("/"), process: int | str = "self") -> Memory:
    """Returns what a process may use of the host's memory.

    Page cache is not counted as used: the kernel gives it back when it is asked for. In a container, or in any
    cgroup with a limit, the tightest limit on the way up counts, and so does what its members use of it.

    Args:
        root: Where the `/proc` and `/sys` to read are; another one than "/" only in tests.
        process: Its number; this process unless told.
    """
    info = _fields(root / "proc/meminfo")
    total, free = info["MemTotal"] * 1024, info["MemAvailable"] * 1024
    source, kind = "/proc/meminfo", Kind.HOST
    for version, names in _VERSIONS.items():
        for limit, used in _limits(root, process, names):
            if limit < total:
                total, source, kind = limit, f"cgroup {version} limit", Kind.CONTAINER
            free = min(free, max(limit - used, 0))
    return Memory("host", Size(total), Size(min(free, total)), source, kind)


def _limits(root: Path, process: int | str, names: _Cgroups) -> Iterator[tuple[int, int]]:
    """Limit and use of a process's cgroup and of those that it is in, as far as they have a limit."""
    for folder in _way_up(root / names.mount, _own_path(root, process, names.controller)):
        limit, used = _number(folder / names.limit), _number(folder / names.use)
        # v2 writes "max" for no limit, v1 the largest multiple of the page size below 2**63.
        if limit is not None and used is not None and limit < 2**62:
            stat = _fields(folder / "memory.stat")
            cache = stat.get(names.cache, 0) - stat.get(names.shared, 0)
            yield limit, max(used - cache, 0)


def _own_path(root: Path, process: int | str, controller: str) -> str | None:
    """A process's cgroup for a v1 controller ("memory") or, with "", in the v2 hierarchy."""
    for line in _text(root / f"proc/{process}/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return None


def _way_up(mount: Path, path: str | None) -> list[Path]:
    """The process's own cgroup folder and its parents up to the mount, as far as they are visible.

    In a container the path in /proc/self/cgroup may be the host's while the mount shows only the container's
    own group: then the mount itself is what counts.
    """
    if path is None:
        return []
    folder = mount / path.strip("/")
    ways = [folder, *folder.parents] if folder.is_dir() else [mount]
    return [way for way in ways if way == mount or mount in way.parents]


def _number(file: Path) -> int | None:
    text = _text(file).strip()
    return int(text) if text.isdigit() else None


def _fields(file: Path) -> dict[str, int]:
    """The `name value` or `name: value kB` lines of a file."""
    words = (line.replace(":", " ").split() for line in _text(file).splitlines())
    return {word[0]: int(word[1]) for word in words if len(word) > 1 and word[1].isdigit()}


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
