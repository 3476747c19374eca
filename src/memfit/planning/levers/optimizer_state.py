"""The optimizer's state: another optimizer that keeps less; advice only."""

from memfit.errors import CannotTell
from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.levers.lever import Facts, Lever
from memfit.planning.optimizer_sizes import kept_by
from memfit.sizes import Size

_LIGHTEST = "Lion"  # of those that adapt their steps: one moment


class OptimizerState(Lever):
    """Says what an optimizer with less state would save.

    A plan does not swap the optimizer of a compiled model: its schedule, its state and the callbacks that hold it
    are the user's.
    """

    name = "optimizer state"

    def fidelity(self, job: Job) -> Fidelity:
        """Another path to the minimum."""
        return Fidelity.PRECISION

    def explain(self, job: Job, batch_size: int) -> str:
        """Says what the other one keeps."""
        name = type(job.model.optimizer).__name__
        return f"yours to change: {_LIGHTEST} keeps less than {name}, and converges differently"

    def why_not(self, job: Job) -> str | None:
        """The optimizer has to keep more than the lightest one."""
        try:
            if self._saved(job) > 0:
                return None
        except CannotTell as error:
            return str(error)
        return f"{type(job.model.optimizer).__name__} keeps no more than {_LIGHTEST} would"

    def advise_saving(self, facts: Facts | None, job: Job, batch_size: int) -> Size | None:
        """The difference of what both keep."""
        return Size(self._saved(job))

    def _saved(self, job: Job) -> int:
        import keras

        weights, lightest = job.model.trainable_variables, getattr(keras.optimizers, _LIGHTEST)
        return max(0, kept_by(job.model.optimizer, weights) - kept_by(lightest, weights))
