"""What `memfit doctor` looks at: versions, devices, host, and the settings that change memory behaviour."""

import importlib.util
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from memfit.budgets.budget import Budget, budget
from memfit.budgets.findings import Finding, Growth, list_findings
from memfit.budgets.isolation import run_isolated
from memfit.budgets.memory import Kind
from memfit.errors import MemfitError

# The variables that were seen to change what TensorFlow allocates, or where.
WATCHED = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "KERAS_BACKEND",
    "LD_PRELOAD",
    "MALLOC_ARENA_MAX",
    "TF_CPU_ALLOCATOR_USE_BFC",
    "TF_CPU_BFC_MEM_LIMIT_IN_MB",
    "TF_CUDNN_WORKSPACE_LIMIT_IN_MB",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "TF_GPU_ALLOCATOR",
    "TF_XLA_FLAGS",
    "XLA_FLAGS",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
)
_PROBE_SECONDS = (
    120.0  # a first TensorFlow start on a cold disk with CUDA libraries was seen to take a minute
)


@dataclass(frozen=True)
class Diagnosis:
    """The state of this machine as far as training memory is concerned.

    Attributes:
        budget: Devices and host.
        tensorflow: TensorFlow's version, or None where it is not installed.
        keras: Keras's version, or None.
        backend: The backend Keras will use.
        tensorflow_gpus: The number of GPUs that TensorFlow itself sees; None where it did not answer.
        growth: How TensorFlow will take the devices' memory.
        allocator: The allocator it will use.
        xla: When Keras compiles a step with XLA here.
        environment: The watched variables that are set.
        findings: What is worth changing, weightiest first.
    """

    budget: Budget
    tensorflow: str | None
    keras: str | None
    backend: str
    tensorflow_gpus: int | None
    growth: Growth
    allocator: str
    xla: str
    environment: dict[str, str]
    findings: tuple[Finding, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns everything as plain data, sizes in bytes."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        plain["budget"] = self.budget.to_json()
        plain["findings"] = [finding.to_json() for finding in self.findings]
        return plain


def diagnose(environment: Mapping[str, str] = os.environ) -> Diagnosis:
    """Looks at the machine and returns what it found; TensorFlow is asked in a process of its own."""
    now = budget()
    has_gpu = any(device.kind is Kind.GPU for device in now.devices)
    facts = Diagnosis(
        budget=now,
        tensorflow=_version("tensorflow", "tensorflow-cpu"),
        keras=_version("keras"),
        backend=_backend(environment),
        tensorflow_gpus=_tensorflow_gpus(has_gpu),
        growth=_growth(environment, has_gpu),
        allocator=_allocator(environment, has_gpu),
        xla='with jit_compile="auto": on one GPU' if has_gpu else 'with jit_compile="auto": no (no GPU)',
        environment={name: environment[name] for name in WATCHED if name in environment},
    )
    return replace(facts, findings=list_findings(facts))


def _version(*distributions: str) -> str | None:
    for name in distributions:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def _backend(environment: Mapping[str, str]) -> str:
    """The backend as Keras itself chooses it: the variable, else ~/.keras/keras.json, else TensorFlow."""
    if "KERAS_BACKEND" in environment:
        return environment["KERAS_BACKEND"]
    folder = Path(environment.get("KERAS_HOME", Path.home() / ".keras"))
    try:
        return str(json.loads((folder / "keras.json").read_text()).get("backend", "tensorflow"))
    except (OSError, ValueError, AttributeError):
        return "tensorflow"


def _tensorflow_gpus(has_gpu: bool) -> int | None:
    if not has_gpu or importlib.util.find_spec("tensorflow") is None:
        return None
    try:
        return run_isolated(
            _count_gpus, (), environment={}, timeout=_PROBE_SECONDS, stderr=subprocess.DEVNULL
        )
    except (MemfitError, TimeoutError, ImportError):
        return None


def _count_gpus() -> int:
    return len(importlib.import_module("tensorflow").config.list_physical_devices("GPU"))


def _growth(environment: Mapping[str, str], has_gpu: bool) -> Growth:
    if not has_gpu:
        return Growth.NO_GPU
    if environment.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower() == "true":
        return Growth.GROWS
    return Growth.WHOLE_DEVICE


def _allocator(environment: Mapping[str, str], has_gpu: bool) -> str:
    if not has_gpu:
        return "BFC on the CPU"
    asynchronous = environment.get("TF_GPU_ALLOCATOR") == "cuda_malloc_async"
    return "cudaMallocAsync" if asynchronous else "BFC"
