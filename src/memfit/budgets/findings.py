"""The rules of `memfit doctor`: what is worth changing on this machine, each with the line to run or write."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from memfit.budgets.arena import arena_cap
from memfit.budgets.memory import Kind, Memory
from memfit.sizes import Size

if TYPE_CHECKING:
    from memfit.budgets.diagnosis import Diagnosis

_OLDEST = {"TensorFlow": (2, 19), "Keras": (3, 12)}
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

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as plain data."""
        return asdict(self)


def list_findings(facts: "Diagnosis") -> tuple[Finding, ...]:
    """Returns what is worth changing, weightiest first."""
    listed = [
        *_check_versions(facts),
        *_check_gpus(facts),
        *_check_host(facts),
        *_check_environment(facts),
    ]
    return tuple(sorted(listed, key=lambda finding: -finding.weight))


def _check_versions(facts: "Diagnosis") -> Iterator[Finding]:
    if facts.tensorflow is None:
        extra = "cuda" if facts.budget.devices else "cpu"
        yield Finding(3, "TensorFlow is not installed.", f"pip install 'memfit[{extra}]'")
    if facts.backend != "tensorflow":
        what = f"Keras is set to the {facts.backend} backend; memfit works with TensorFlow's."
        yield Finding(3, what, "export KERAS_BACKEND=tensorflow")
    for name, installed in (("TensorFlow", facts.tensorflow), ("Keras", facts.keras)):
        if installed is not None and _numbers(installed) < _OLDEST[name]:
            oldest = ".".join(map(str, _OLDEST[name]))
            what = f"{name} {installed} is older than {oldest}, the oldest that memfit supports."
            yield Finding(3, what, f"pip install --upgrade '{name.lower()}>={oldest}'")


def _check_gpus(facts: "Diagnosis") -> Iterator[Finding]:
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


def _check_host(facts: "Diagnosis") -> Iterator[Finding]:
    host: Memory = facts.budget.host
    if host.free < _LOW_HOST * host.total:
        what = f"Only {host.free} of the host's {host.total} are free ({host.source})."
        yield Finding(2, what, "ps aux --sort=-rss | head")
    if host.kind is Kind.CONTAINER:
        what = f"This container may use {host.total}; tf.data does not know and sizes its buffers by the machine."
        yield Finding(
            1, what, f"options = tf.data.Options(); options.autotune.ram_budget = {host.total // 4}"
        )


def _check_environment(facts: "Diagnosis") -> Iterator[Finding]:
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


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
