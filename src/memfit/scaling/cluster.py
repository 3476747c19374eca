"""Which job of several processes this process belongs to, and which of its ranks it is.

A process learns it from `TF_CONFIG`, TensorFlow's own variable, which Ray, Kubernetes jobs and `memfit run --ranks`
set; or from Slurm's variables, of which a `TF_CONFIG` is made. Nothing of TensorFlow is imported here: a cluster
has to be known before TensorFlow starts.
"""

import json
import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from memfit.errors import InvalidInput
from memfit.scaling.slurm import find_own_gpu, read_slurm

LAUNCHER = "MEMFIT_LAUNCHER"  # names who has set TF_CONFIG, where it was memfit
RANK = "MEMFIT_RANK"  # this process's number: what a script may look at
_EXAMPLE = (
    'TF_CONFIG=\'{"cluster": {"worker": ["host1:12345", "host2:12345"]}, '
    '"task": {"type": "worker", "index": 0}}\''
)


@dataclass(frozen=True)
class Cluster:
    """The processes of a job: one for each device, all running the same script.

    Attributes:
        rank: The number of this process; rank 0 writes checkpoints, logs and progress.
        addresses: Where each rank listens, as "host:port", in the order of the ranks.
        source: Who started the ranks: "memfit run", "Slurm" or "TF_CONFIG".
    """

    rank: int
    addresses: tuple[str, ...]
    source: str

    @property
    def count(self) -> int:
        """How many ranks there are."""
        return len(self.addresses)

    def to_tf_config(self) -> str:
        """Returns the cluster as TensorFlow reads it."""
        task = {"type": "worker", "index": self.rank}
        return json.dumps({"cluster": {"worker": list(self.addresses)}, "task": task})


def find_cluster(environment: MutableMapping[str, str] = os.environ) -> Cluster | None:
    """Finds the cluster that this process belongs to; None where it is a process by itself.

    `TF_CONFIG` is believed first. Where there is none and Slurm has started this process as one of several tasks,
    `TF_CONFIG` is written for TensorFlow. `MEMFIT_RANK` is set for the script.

    Raises:
        InvalidInput: If `TF_CONFIG` or Slurm's variables do not describe a cluster that memfit can train on.

    Example:
    ```python
    cluster = find_cluster({"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"index": 1}}'})
    cluster.rank, cluster.count  # 1, 2
    ```
    """
    cluster = None
    if environment.get("TF_CONFIG"):
        cluster = _read_tf_config(environment["TF_CONFIG"], environment.get(LAUNCHER, "TF_CONFIG"))
    elif (task := read_slurm(environment)) is not None:
        cluster = Cluster(*task, "Slurm")
        environment["TF_CONFIG"] = cluster.to_tf_config()
        environment[LAUNCHER] = "Slurm"
        if (gpu := find_own_gpu(environment)) is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
    if cluster is not None:
        environment[RANK] = str(cluster.rank)
    return cluster


def _read_tf_config(text: str, source: str) -> Cluster | None:
    try:
        config = json.loads(text)
    except ValueError as error:
        raise _wrong(f"it is not JSON ({error})", text) from error
    if not isinstance(config, dict) or not isinstance(config.get("cluster", {}), dict):
        raise _wrong("it has no `cluster` with a list of addresses for each type of task", text)
    jobs: Mapping[str, Any] = config.get("cluster", {})
    if not jobs:
        return None  # as TensorFlow understands it: a process by itself
    if others := sorted(set(jobs) - {"chief", "worker"}):
        raise InvalidInput(
            "memfit trains on workers that are all alike: no parameter servers, no evaluators",
            received=f"TF_CONFIG with {', '.join(others)}",
            remedy="Start one worker for each device",
        )
    if not all(isinstance(each, list) for each in jobs.values()):
        raise _wrong("`cluster` needs a list of addresses for each type of task", text)
    addresses = tuple(str(address) for name in ("chief", "worker") for address in jobs.get(name, []))
    _check_addresses(addresses, text)
    rank = _find_rank(config.get("task"), jobs, text)
    return Cluster(rank, addresses, source) if len(addresses) > 1 else None


def _find_rank(task: Any, jobs: Mapping[str, Any], text: str) -> int:
    if not isinstance(task, dict) or "index" not in task:
        raise _wrong("it does not say which `task` this process is", text)
    kind, index = task.get("type", "worker"), task["index"]
    if kind not in jobs:
        raise _wrong(f"its task is a {kind!r}, of which its cluster has none", text)
    if not str(index).isdigit() or int(index) >= len(jobs[kind]):
        raise _wrong(f"its task is {kind} {index} of {len(jobs[kind])}, counted from 0", text)
    return int(index) + (len(jobs.get("chief", [])) if kind == "worker" else 0)


def _check_addresses(addresses: tuple[str, ...], text: str) -> None:
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 2**16:
            raise _wrong(f"{address!r} is no address such as host1:12345", text)
    twice = sorted({address for address in addresses if addresses.count(address) > 1})
    if twice:
        raise _wrong(f"two of its tasks have the address {twice[0]}", text)


def _wrong(what: str, text: str) -> InvalidInput:
    short = text if len(text) <= 300 else text[:300] + "..."
    return InvalidInput(
        f"TF_CONFIG does not describe a cluster: {what}",
        received=short,
        remedy=f"Write it as {_EXAMPLE}, or remove it to train in this process alone",
    )
