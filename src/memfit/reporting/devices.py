"""The table of GPUs that a training can be planned for."""

from collections.abc import Iterable
from pathlib import Path

from memfit.budgets.gpu_table import GPU
from memfit.sizes import Size
from memfit.tables import table

_HEAD = ["GPU", "memory", "capability", "SMs", "bandwidth", "source of the specifications"]


def describe_gpus(gpus: Iterable[GPU], compiler: str, folder: Path) -> str:
    """Returns the known GPUs as text, with what one can do with them.

    Args:
        gpus: The GPUs.
        compiler: The compiler that is there for them, or why there is none.
        folder: Where a user adds GPUs.
    """
    rows, memory_only = [], []
    for gpu in gpus:
        if gpu.specs is None:
            memory_only.append(gpu.name)
            continue
        bandwidth = f"{gpu.specs.bandwidth_gb_s:.0f} GB/s"
        capability = gpu.compute_capability
        size = Size(gpu.mib * 2**20)
        rows.append([gpu.name, size, capability, gpu.specs.sms, bandwidth, gpu.specs.source])
    return "\n".join(
        [
            table(rows, head=_HEAD, right=[1, 2, 3, 4]),
            "",
            f"memory and compute capability only (not checked against a source): {', '.join(memory_only)}",
            "",
            f"compiler: {compiler}",
            f"to add a GPU: put a file such as memfit's own into {folder}",
            'to ask about one: memfit estimate train.py --device "A100 40GB"',
        ]
    )
