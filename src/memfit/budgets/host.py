"""The host's memory: the cgroup's limit where there is one, else the machine's RAM."""

from dataclasses import dataclass
from pathlib import Path

from memfit.budgets.memory import Kind, Memory
from memfit.sizes import Size

# cgroup v1 writes "no limit" as the largest multiple of the page size below 2**63.
_UNLIMITED = 2**62


@dataclass(frozen=True)
class _Cgroup:
    limit: int
    used: int
    version: str


def host_memory(root: Path = Path("/")) -> Memory:
    """Returns what this process may use of the host's memory.

    Page cache is not counted as used: the kernel gives it back when it is asked for. In a container, or in any
    cgroup with a limit, the tightest limit on the way up counts, and so does what its members use of it.

    Args:
        root: Where the `/proc` and `/sys` to read are; another one than "/" only in tests.
    """
    info = _fields(root / "proc/meminfo")
    total, free = info["MemTotal"] * 1024, info["MemAvailable"] * 1024
    source, kind = "/proc/meminfo", Kind.HOST
    for group in (*_cgroup_v2(root), *_cgroup_v1(root)):
        if group.limit < total:
            total, source, kind = group.limit, f"cgroup {group.version} limit", Kind.CONTAINER
        free = min(free, max(group.limit - group.used, 0))
    return Memory("host", Size(total), Size(min(free, total)), source, kind)


def _cgroup_v2(root: Path) -> list[_Cgroup]:
    mount = root / "sys/fs/cgroup"
    groups = []
    for folder in _way_up(mount, _own_path(root, "")):
        limit, used = _number(folder / "memory.max"), _number(folder / "memory.current")
        if limit is not None and used is not None:
            stat = _fields(folder / "memory.stat")
            # "file" counts tmpfs and shared memory as well, which cannot be dropped.
            cache = stat.get("file", 0) - stat.get("shmem", 0)
            groups.append(_Cgroup(limit, max(used - cache, 0), "v2"))
    return groups


def _cgroup_v1(root: Path) -> list[_Cgroup]:
    mount = root / "sys/fs/cgroup/memory"
    groups = []
    for folder in _way_up(mount, _own_path(root, "memory")):
        limit, used = _number(folder / "memory.limit_in_bytes"), _number(folder / "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < _UNLIMITED:
            stat = _fields(folder / "memory.stat")
            cache = stat.get("total_cache", 0) - stat.get("total_shmem", 0)
            groups.append(_Cgroup(limit, max(used - cache, 0), "v1"))
    return groups


def _own_path(root: Path, controller: str) -> str | None:
    """This process's cgroup for a v1 controller ("memory") or, with "", in the v2 hierarchy."""
    for line in _text(root / "proc/self/cgroup").splitlines():
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
    return int(text) if text.isdigit() else None  # "max" is no limit


def _fields(file: Path) -> dict[str, int]:
    """The `name value` or `name: value kB` lines of a file."""
    words = (line.replace(":", " ").split() for line in _text(file).splitlines())
    return {word[0]: int(word[1]) for word in words if len(word) > 1 and word[1].isdigit()}


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
