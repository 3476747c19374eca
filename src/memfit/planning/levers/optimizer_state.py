"""The optimizer's state: another optimizer that keeps less; advice only."""

from memfit.errors import CannotTell
from memfit.optimizers import Adam8bit
from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.levers.lever import Lever
from memfit.planning.levers.lighter_state import EightBitMoments
from memfit.planning.optimizer_sizes import kept_by
from memfit.sizes import Size
from memfit.steps.lighter_state import why_not_lighter
from memfit.steps.slots import innermost

_LIGHTEST = "Adam8bit"  # of those that adapt their steps: two bytes a value


class OptimizerState(Lever):
    """Says what an optimizer with less state would save.

    A plan lets the user's own optimizer keep less where it can (`lighter_state`). It does not put another one in
    its place: that would train another way, and callbacks hold the one that was compiled.
    """

    name = "optimizer state"
    always = Fidelity.PRECISION  # another path to the minimum
    of_optimizer = True

    def explain(self, job: Job) -> str:
        """Says what the other one keeps."""
        name = type(innermost(job.model.optimizer)).__name__
        return f"up to you: memfit.optimizers.{_LIGHTEST} keeps less than {name}, and converges differently"

    def why_not(self, job: Job) -> str | None:
        """The optimizer has to keep more than the lightest one, and have no such form itself."""
        if why_not_lighter(job.model, EightBitMoments.form) is None:
            return f"{EightBitMoments.name} save more"
        try:
            if self._saved(job) > 0:
                return None
        except CannotTell as error:
            return str(error)
        return f"{type(innermost(job.model.optimizer)).__name__} keeps no more than {_LIGHTEST} would"

    def advise_saving(self, job: Job, batch_size: int) -> Size | None:
        """The difference of what both keep."""
        return Size(self._saved(job))

    def _saved(self, job: Job) -> int:
        weights, own = job.model.trainable_variables, innermost(job.model.optimizer)
        return max(0, kept_by(own, weights) - kept_by(Adam8bit, weights))
