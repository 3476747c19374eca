"""What a lever is: one change that saves memory, how faithful it is, which recipes it offers, and what it says."""

from collections.abc import Iterator
from typing import ClassVar, Protocol

from memfit.planning.fidelity import Fidelity
from memfit.planning.job import Job
from memfit.sizes import Size
from memfit.steps.recipe import Recipe
from memfit.steps.rematerialisation import Segments


class Facts(Protocol):
    """What recordings have shown of a job's step, for a lever's own predictions; all sizes in bytes."""

    @property
    def inputs(self) -> int:
        """One sample of the inputs, targets and weights."""

    @property
    def gradients(self) -> int:
        """One copy of the gradients."""

    def need(self, recipe: Recipe, batch_size: int) -> int:
        """What a step takes with its margin."""

    def activations(self, batch_size: int) -> int:
        """What of the stock step's peak are activations."""

    def waiting(self, batch_size: int) -> int:
        """What the input pipeline holds on the device beside the step."""

    def fixed_time(self, batch_size: int) -> float:
        """The time of a step that does not depend on the batch, as a part of the stock step's."""

    def saved_by_segments(self, segments: Segments, batch_size: int) -> int:
        """What segments save by their own prediction, as far as recordings have shown it to be real."""

    def recomputed(self, segments: Segments) -> float:
        """The extra time of segments, as a part of a stock step."""


class Lever:
    """One change that saves memory. A lever that only advises offers no recipe.

    The search combines what all levers offer; the guard, when memory runs out, asks each to `tighten`. Where its
    fidelity or its explanation depends on the job, a lever has a method of its own in place of the attribute.
    """

    name: ClassVar[str]
    always: ClassVar[Fidelity]
    sentence: ClassVar[str]
    # Whether it is for the step of any loss function, too, and not only for Keras's `fit`.
    of_any_step: ClassVar[bool] = False
    # Whether it is for several ranks that train together.
    of_ranks: ClassVar[bool] = False
    # Whether what the optimizer keeps is less with it: that helps where an update alone does not fit.
    of_optimizer: ClassVar[bool] = False

    def fidelity(self, job: Job) -> Fidelity:
        """How far it goes from the training that the user wrote."""
        return self.always

    def explain(self, job: Job) -> str:
        """Says in a few words what it does for this job, or what the user could do."""
        return self.sentence

    def why_not(self, job: Job) -> str | None:
        """Says why it cannot be used for this job, or None where it can."""
        return None

    def see_in_data(self, job: Job) -> str | None:
        """Returns what its answers depend on in the data itself, beyond shapes and types: plans are kept by it."""
        return None

    def offer(self, job: Job, recipe: Recipe, batch_size: int) -> Iterator[Recipe]:
        """Yields recipes that use it on top of another recipe, those that change least first."""
        yield from ()

    def undo(self, recipe: Recipe) -> Recipe:
        """Returns the recipe without this lever."""
        return recipe

    def is_used(self, recipe: Recipe) -> bool:
        """Whether a recipe uses it."""
        return self.undo(recipe) != recipe

    def describe(self, recipe: Recipe, batch_size: int) -> str:
        """Says how far a recipe uses it, such as "4 of 8 samples"."""
        return ""

    def predict_saving(self, facts: Facts, recipe: Recipe, batch_size: int) -> int:
        """Predicts what it saves in a recipe that uses it, before that is recorded."""
        return 0

    def predict_cost(self, facts: Facts, recipe: Recipe, batch_size: int) -> float:
        """Predicts its time in a recipe that uses it, as a part of a stock step."""
        return 0.0

    def advise_saving(self, job: Job, batch_size: int) -> Size | None:
        """What taking the advice would save, where that is known."""
        return None

    def tighten(self, job: Job, recipe: Recipe, batch_size: int, share: float) -> Recipe | None:
        """Returns a recipe that takes at most a `share` of what this one's step takes, or as little as it can.

        None where it has nothing tighter.
        """
        return None
