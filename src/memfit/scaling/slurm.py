"""Reading Slurm's variables: the tasks of a step that `srun` started, and where each of them can listen."""

import re
from collections.abc import Mapping

from memfit.errors import InvalidInput

# Below the ports that Linux gives to outgoing connections (32768 and up), so that none of them is in the way.
_FIRST_PORT, _PORTS = 12000, 20000


def read_slurm(environment: Mapping[str, str]) -> tuple[int, tuple[str, ...]] | None:
    """Reads which task of a step this process is, and where each listens; None outside of one, or for one task.

    Only the variables of a step (`srun`) count: a batch script sees those of its whole job, but is one process.

    Raises:
        InvalidInput: If the variables contradict each other.
    """
    names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE")
    if any(name not in environment for name in names):
        return None
    rank, count, nodes, counts = (environment[name] for name in names)
    if int(count) < 2:
        return None
    hosts, tasks = expand_nodes(nodes), expand_counts(counts)
    if len(hosts) != len(tasks) or sum(tasks) != int(count) or int(rank) >= int(count):
        raise InvalidInput(
            "Slurm's variables do not say where each task of this step runs",
            received=", ".join(f"{name}={environment[name]}" for name in names),
            remedy="Start the ranks with srun, or set TF_CONFIG",
        )
    job, step = environment.get("SLURM_JOB_ID", "0"), environment.get("SLURM_STEP_ID", "0")
    # All tasks compute the same ports. A step that follows at once has others: its predecessor's may linger.
    first = (int(job) * 101 + int(step) * 17) % (_PORTS - max(tasks))
    addresses = tuple(
        f"{host}:{_FIRST_PORT + first + local}"
        for host, number in zip(hosts, tasks, strict=True)
        for local in range(number)
    )
    return int(rank), addresses


def expand_nodes(text: str) -> list[str]:
    """Expands a list of nodes as Slurm writes it.

    Example:
    ```python
    expand_nodes("gpu[01-02,7],login")  # ["gpu01", "gpu02", "gpu7", "login"]
    ```
    """
    nodes: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        heads = [""]
        for plain, ranges in re.findall(r"([^\[]+)|\[([^\]]*)\]", part):
            ends = [plain] if plain else [number for each in ranges.split(",") for number in _numbers(each)]
            heads = [head + end for head in heads for end in ends]
        nodes += heads
    return nodes


def expand_counts(text: str) -> list[int]:
    """Expands numbers of tasks as Slurm writes them: "2(x3),1" is 2, 2, 2, 1."""
    counts: list[int] = []
    for number, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(number)] * int(times or 1)
    return counts


def _numbers(text: str) -> list[str]:
    first, dash, last = text.partition("-")
    if not dash:
        return [first]
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]


def find_own_gpu(environment: Mapping[str, str]) -> str | None:
    """Returns this task's of the GPUs that Slurm shows to all tasks of a node; None where it has its own."""
    visible = [gpu for gpu in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    local = int(environment.get("SLURM_LOCALID", "0"))
    return visible[local] if len(visible) > 1 and local < len(visible) else None
