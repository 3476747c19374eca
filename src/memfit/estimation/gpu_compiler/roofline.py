"""How long a compiled step takes at least: each kernel as fast as the GPU multiplies or its memory delivers."""

from collections.abc import Iterable

from memfit.budgets.device_specs import Specs
from memfit.estimation.gpu_compiler.compiled import Kernel


def least_seconds(kernels: Iterable[Kernel], specs: Specs) -> float:
    """Returns the roofline time of a step's kernels, one after the other; starting them is not counted."""
    bandwidth = specs.bandwidth_gb_s * 1e9
    return sum(
        kernel.count * max(kernel.flops / specs.flops(kernel.dtype), kernel.bytes / bandwidth)
        for kernel in kernels
    )
