"""Against recorded /proc and /sys trees: the limits of containers cannot be made without root."""

from pathlib import Path

import psutil
import pytest

from memfit.budgets.memory import host_memory

GIB = 2**30


def _tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = "MemTotal:       67108864 kB\nMemFree:         1048576 kB\nMemAvailable:   33554432 kB\n"


def test_without_a_cgroup_the_machine_counts_and_page_cache_is_free(tmp_path: Path) -> None:
    memory = host_memory(_tree(tmp_path, {"proc/meminfo": MEMINFO}))
    assert (memory.total, memory.free, memory.source) == (64 * GIB, 32 * GIB, "/proc/meminfo")


def test_a_v2_limit_counts_and_its_page_cache_is_free_but_shared_memory_is_not(tmp_path: Path) -> None:
    group = "sys/fs/cgroup"
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/\n",
        f"{group}/memory.max": f"{8 * GIB}\n",
        f"{group}/memory.current": f"{6 * GIB}\n",
        f"{group}/memory.stat": f"anon {2 * GIB}\nfile {4 * GIB}\nshmem {1 * GIB}\n",
    }
    memory = host_memory(_tree(tmp_path, files))
    assert (memory.total, memory.free, memory.source) == (8 * GIB, 5 * GIB, "cgroup v2 limit")


def test_the_tightest_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/user.slice"
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/user.slice/job\n",
        f"{group}/memory.max": f"{4 * GIB}\n",
        f"{group}/memory.current": f"{3 * GIB}\n",
        f"{group}/job/memory.max": "max\n",
        f"{group}/job/memory.current": f"{1 * GIB}\n",
    }
    memory = host_memory(_tree(tmp_path, files))
    assert (memory.total, memory.free) == (4 * GIB, 1 * GIB)


def test_a_v1_limit_counts_where_the_container_sees_only_its_own_mount(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory"
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "5:cpu:/\n4:memory:/docker/0123abc\n",
        f"{group}/memory.limit_in_bytes": f"{16 * GIB}\n",
        f"{group}/memory.usage_in_bytes": f"{10 * GIB}\n",
        f"{group}/memory.stat": f"total_cache {3 * GIB}\ntotal_shmem 0\n",
    }
    memory = host_memory(_tree(tmp_path, files))
    assert (memory.total, memory.free, memory.source) == (16 * GIB, 9 * GIB, "cgroup v1 limit")


@pytest.mark.parametrize("limit", ["9223372036854771712", "max"])
def test_no_limit_leaves_the_machine(tmp_path: Path, limit: str) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "4:memory:/\n0::/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{limit}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n",
    }
    assert host_memory(_tree(tmp_path, files)).total == 64 * GIB


def test_more_used_than_allowed_leaves_nothing_free(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": f"{GIB}\n",
        "sys/fs/cgroup/memory.current": f"{2 * GIB}\n",
    }
    assert host_memory(_tree(tmp_path, files)).free == 0


def test_this_machine_has_at_most_what_psutil_says() -> None:
    memory = host_memory()
    assert 0 < memory.free <= memory.total <= psutil.virtual_memory().total
