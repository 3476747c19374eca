"""What `memfit doctor` looks at: versions, devices, host, and the settings that change memory behaviour."""

import importlib.util
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from memfit.budgets.arena import arena_cap
from memfit.budgets.budget import Budget, budget
from memfit.budgets.isolation import run_isolated
from memfit.budgets.memory import Kind, Memory
from memfit.compat.versions import SUPPORTED, installed_version, release_of
from memfit.errors import MemfitError
from memfit.sizes import Size

# The variables that were seen to change what TensorFlow allocates, or where.
WATCHED = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "KERAS_BACKEND", "LD_PRELOAD", "MALLOC_ARENA_MAX"),
    *("TF_CPU_ALLOCATOR_USE_BFC", "TF_CPU_BFC_MEM_LIMIT_IN_MB", "TF_CUDNN_WORKSPACE_LIMIT_IN_MB"),
    *("TF_ENABLE_ONEDNN_OPTS", "TF_FORCE_GPU_ALLOW_GROWTH", "TF_GPU_ALLOCATOR", "TF_XLA_FLAGS", "XLA_FLAGS"),
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
)
# A first TensorFlow start on a cold disk with CUDA libraries was seen to take a minute.
_PROBE_SECONDS = 120.0
# Below these shares a training of any size is likely to fail for reasons outside of it.
_LOW_DEVICE, _LOW_HOST = 0.5, 0.15


class Growth(StrEnum):
    """How TensorFlow takes the memory of devices."""

    NO_GPU = "no GPU: memory is taken as needed"
    GROWS = "growth (TF_FORCE_GPU_ALLOW_GROWTH)"
    WHOLE_DEVICE = "TensorFlow takes nearly all of each GPU at its start"


@dataclass(frozen=True)
class Finding:
    """One thing worth changing.

    Attributes:
        weight: 3 where training cannot work, 2 where it will likely run out of memory, 1 where it is worth knowing.
        what: What was found, as a sentence.
        do: The exact line to run or write.
    """

    weight: int
    what: str
    do: str


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
        plain["findings"] = [asdict(finding) for finding in self.findings]
        return plain


def diagnose(environment: Mapping[str, str] = os.environ) -> Diagnosis:
    """Looks at the machine and returns what it found; TensorFlow is asked in a process of its own."""
    now = budget()
    has_gpu = any(device.kind is Kind.GPU for device in now.devices)
    growth, allocator, compiles = Growth.NO_GPU, "BFC on the CPU", "no (no GPU)"
    if has_gpu:
        grows = environment.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower() == "true"
        growth = Growth.GROWS if grows else Growth.WHOLE_DEVICE
        asynchronous = environment.get("TF_GPU_ALLOCATOR") == "cuda_malloc_async"
        allocator = "cudaMallocAsync" if asynchronous else "BFC"
        compiles = "on one GPU"
    facts = Diagnosis(
        budget=now,
        tensorflow=installed_version("TensorFlow"),
        keras=installed_version("Keras"),
        backend=_backend(environment),
        tensorflow_gpus=_tensorflow_gpus(has_gpu),
        growth=growth,
        allocator=allocator,
        xla=f'with jit_compile="auto": {compiles}',
        environment={name: environment[name] for name in WATCHED if name in environment},
    )
    return replace(facts, findings=list_findings(facts))


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


def list_findings(facts: Diagnosis) -> tuple[Finding, ...]:
    """Returns what is worth changing, weightiest first."""
    checks = (_check_versions, _check_gpus, _check_host, _check_environment)
    listed = [finding for check in checks for finding in check(facts)]
    return tuple(sorted(listed, key=lambda finding: -finding.weight))


def _check_versions(facts: Diagnosis) -> Iterator[Finding]:
    if facts.tensorflow is None:
        extra = "cuda" if facts.budget.devices else "cpu"
        yield Finding(3, "TensorFlow is not installed.", f"pip install 'memfit[{extra}]'")
    if facts.backend != "tensorflow":
        what = f"Keras is set to the {facts.backend} backend; memfit works with TensorFlow's."
        yield Finding(3, what, "export KERAS_BACKEND=tensorflow")
    for name, installed in (("TensorFlow", facts.tensorflow), ("Keras", facts.keras)):
        oldest, _ = SUPPORTED[name]
        if installed is not None and release_of(installed) < release_of(oldest):
            what = f"{name} {installed} is older than {oldest}, the oldest that memfit supports."
            yield Finding(3, what, f"pip install --upgrade '{name.lower()}>={oldest}'")


def _check_gpus(facts: Diagnosis) -> Iterator[Finding]:
    gpus = [device for device in facts.budget.devices if device.kind is Kind.GPU]
    if gpus and facts.tensorflow_gpus == 0:
        what = f"The driver has {len(gpus)} GPU(s), but TensorFlow sees none and would train on the CPU."
        yield Finding(3, what, "pip install 'tensorflow[and-cuda]'")
    if gpus and facts.growth is Growth.WHOLE_DEVICE:
        what = "TensorFlow will take nearly all memory of every GPU at its start, whatever it needs."
        yield Finding(2, what, "import memfit; memfit.configure()   # first lines of the script")
    for gpu in gpus:
        if gpu.free < _LOW_DEVICE * gpu.total:
            what = f"{gpu.name}: only {gpu.free} of {gpu.total} are free; other processes hold the rest."
            yield Finding(
                2, what, "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv"
            )


def _check_host(facts: Diagnosis) -> Iterator[Finding]:
    host: Memory = facts.budget.host
    if host.free < _LOW_HOST * host.total:
        what = f"Only {host.free} of the host's {host.total} are free ({host.source})."
        yield Finding(2, what, "ps aux --sort=-rss | head")
    if host.kind is Kind.CONTAINER:
        what = f"This container may use {host.total}; tf.data does not know and sizes its buffers by the machine."
        yield Finding(
            1, what, f"options = tf.data.Options(); options.autotune.ram_budget = {host.total // 4}"
        )


def _check_environment(facts: Diagnosis) -> Iterator[Finding]:
    cap = arena_cap(facts.environment)
    if cap is not None:
        what = f"Every TensorFlow started from this shell is capped at {cap} of CPU memory (the arena)."
        yield Finding(1, what, "unset TF_CPU_ALLOCATOR_USE_BFC TF_CPU_BFC_MEM_LIMIT_IN_MB")
        if facts.environment.get("TF_ENABLE_ONEDNN_OPTS") != "0":
            what = "oneDNN is on: out of memory under the cap can end the process with SIGSEGV."
            yield Finding(2, what, "export TF_ENABLE_ONEDNN_OPTS=0")
    if "tf_xla_auto_jit" in facts.environment.get("TF_XLA_FLAGS", ""):
        what = "TF_XLA_FLAGS turns XLA on for all of TensorFlow, not only for the steps Keras compiles."
        yield Finding(1, what, "unset TF_XLA_FLAGS")
    if facts.environment.get("TF_CUDNN_WORKSPACE_LIMIT_IN_MB", "").isdigit():
        limit = Size(int(facts.environment["TF_CUDNN_WORKSPACE_LIMIT_IN_MB"]) * 2**20)
        what = f"cuDNN workspaces are capped at {limit}: less memory, possibly slower convolutions."
        yield Finding(1, what, "unset TF_CUDNN_WORKSPACE_LIMIT_IN_MB")
