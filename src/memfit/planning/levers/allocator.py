"""The allocator: CUDA's own against fragmentation; set before TensorFlow starts, so a plan can only advise it."""

from memfit.budgets.nvml import gpus
from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.levers.lever import Lever


class Allocator(Lever):
    """Advises CUDA's asynchronous allocator."""

    name = "allocator"
    always = Fidelity.EXACT  # the same values elsewhere
    sentence = 'up to you: memfit.configure(allocator="async") at the top of the script fragments less'
    of_any_step = True

    def why_not(self, job: Job) -> str | None:
        """There has to be a GPU."""
        return None if gpus() else "there is no GPU, and only a GPU's allocator can be chosen"
