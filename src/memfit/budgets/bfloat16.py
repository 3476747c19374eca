"""Which of the 16-bit formats a GPU computes fast in."""

from memfit.budgets.device_specs import has_bfloat16
from memfit.budgets.gpu_table import gpu
from memfit.budgets.nvml import compute_capabilities


def supports_bfloat16(device: str | None = None) -> bool:
    """Says whether bfloat16 is fast; where it is not (before Ampere), float16 is.

    Args:
        device: A GPU's name in any spelling that `memfit devices` knows; None for the GPUs of this machine. A CPU
            computes in bfloat16.

    Raises:
        InvalidInput: If the table has no such GPU.
    """
    if device is not None:
        return gpu(device).bfloat16
    return all(has_bfloat16(capability) for capability in compute_capabilities())
