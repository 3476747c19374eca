"""The lever of the allocator: growth, and CUDA's own allocator against fragmentation."""

from memfit.budgets.nvml import gpus
from memfit.planning.fidelity import Fidelity
from memfit.planning.plan import Lever

NAME = "allocator"


def lever() -> Lever:
    """Says what the allocator could do; it is set before TensorFlow starts, so a plan can only advise it."""
    if not gpus():
        return Lever(
            NAME, Fidelity.EXACT, used=False, why="there is no GPU here whose allocator could be set"
        )
    why = 'memfit.configure(allocator="async") at the top of the script fragments less; a running one cannot change'
    return Lever(NAME, Fidelity.EXACT, used=False, why=why)
