"""The recipes that could be chosen for a job, each with its fidelity, predicted need and predicted time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.planning.levers import LEVERS, levers_for
from memfit.planning.levers.lever import Facts
from memfit.steps.recipe import Recipe

# Predicted times that are closer than this part of a stock step cannot be told apart.
_SAME_TIME = 0.02


@dataclass(frozen=True)
class Candidate:
    """A recipe for a batch.

    Attributes:
        recipe: How the step is computed.
        fidelity: The farthest that any of its levers goes.
        need: Predicted bytes, with margin.
        time: Predicted time of a step as a multiple of stock's.
        recorded: Whether another recording would tell nothing more: there is one of about this batch, or it cannot
            be recorded.
        bounded: Whether there is one of about this batch, or of a larger one.
    """

    recipe: Recipe
    fidelity: Fidelity
    need: int
    time: float
    recorded: bool
    bounded: bool

    @property
    def levers(self) -> int:
        """How many levers it uses."""
        return sum(lever.is_used(self.recipe) for lever in LEVERS)


def list_recipes(job: Job, batch_size: int, allow: Fidelity) -> list[Recipe]:
    """Lists every combination of what the levers offer, stock Keras's own step first."""
    recipes = [Recipe()]
    for lever in levers_for(job):
        if lever.fidelity(job) <= allow and lever.why_not(job) is None:
            recipes += [more for recipe in recipes for more in lever.offer(job, recipe, batch_size)]
    return recipes


def judge_fidelity(job: Job, recipe: Recipe) -> Fidelity:
    """Returns the farthest that any lever of a recipe goes."""
    return max((lever.fidelity(job) for lever in LEVERS if lever.is_used(recipe)), default=Fidelity.EXACT)


def predict_time(facts: Facts, recipe: Recipe, batch_size: int) -> float:
    """Predicts the time of a step as a multiple of stock's."""
    used = (lever for lever in LEVERS if lever.is_used(recipe))
    return 1 + sum(lever.predict_cost(facts, recipe, batch_size) for lever in used)


def choose_best(candidates: Iterable[Candidate], memory: int) -> Candidate | None:
    """Returns the fastest of the most faithful candidates that fit; None where none fits.

    Of those that are as fast, as far as predictions can tell, it is the one that changes least.
    """
    fitting = [candidate for candidate in candidates if candidate.need <= memory]
    if not fitting:
        return None
    fidelity = min(candidate.fidelity for candidate in fitting)
    return _choose_fastest([candidate for candidate in fitting if candidate.fidelity == fidelity])


def _choose_fastest(candidates: Sequence[Candidate]) -> Candidate:
    fastest = min(candidate.time for candidate in candidates)
    as_fast = [candidate for candidate in candidates if candidate.time <= fastest + _SAME_TIME]
    return min(as_fast, key=lambda candidate: (candidate.levers, candidate.time))
