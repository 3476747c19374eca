"""Adam's moments in 8 bits while it trains."""

from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.levers.lever import Facts
from memfit.planning.levers.lighter_state import LighterOptimizer
from memfit.steps.recipe import Recipe

# What a large weight's moments save of their bytes: 2 bytes and two scales a block of 256, instead of 8.
_SAVED = 0.746
# What rounding adds to a step (`make bench-optimizers`).
_COST = 0.03


class EightBitMoments(LighterOptimizer):
    """Lets Keras's Adam or AdamW update as `memfit.optimizers.Adam8bit` does."""

    name = "8-bit moments"
    form = "8-bit moments"

    def fidelity(self, job: Job) -> Fidelity:
        """Other number formats."""
        return Fidelity.PRECISION

    def explain(self, job: Job, batch_size: int) -> str:
        """Says what it does to the optimizer, and until when."""
        name = type(job.model.optimizer).__name__
        return f"{name} keeps its moments in 8 bits during training, and in float32 again afterwards"

    def predict_saving(self, facts: Facts, recipe: Recipe, batch_size: int) -> int:
        """Three quarters of both moments."""
        return int(2 * _SAVED * facts.gradients)

    def predict_cost(self, facts: Facts, recipe: Recipe, batch_size: int) -> float:
        """Rounding."""
        return _COST
