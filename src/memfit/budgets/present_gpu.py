"""The GPU that is in this machine, as memfit's table describes it."""

from memfit.budgets.gpu_table import GPU, gpu
from memfit.budgets.nvml import compute_capabilities, gpus
from memfit.errors import InvalidInput

_MIB = 2**20


def present_gpu() -> GPU | None:
    """Returns the first GPU that TensorFlow would use in this process; None where there is none.

    Of a card that is not in the table only what its driver says is known.
    """
    present = gpus()
    if not present:
        return None
    name = present[0].name.removeprefix("GPU:0 ")
    try:
        return gpu(name)
    except InvalidInput:
        return GPU(name, present[0].total // _MIB, compute_capabilities()[0])


def find_gpu(device: str | None) -> GPU | None:
    """Returns the GPU of that name, which need not be here, or the one that is here; None for a CPU.

    Raises:
        InvalidInput: If the table has no such GPU.
    """
    return present_gpu() if device is None else gpu(device)
