"""Computing a batch until it succeeds: a step that runs out of memory is rolled back, tightened and done again."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from memfit.compat.tf_graphs import forget_gradients_of_dead_graphs
from memfit.data.shapes import BatchShape
from memfit.steps.recipe import Recipe
from memfit.training.guard.events import Journal, OutOfMemory, Shortage, attempt, check_survivable, free
from memfit.training.guard.room import Room
from memfit.training.guard.tightening import Tightening
from memfit.training.guard.ways import Ways

# How often a step is repeated that cannot be made tighter; each time costs TensorFlow's 10 s, too.
_REPEATS = 3
# Steps without a shortage after which the faster step is tried again: far more than a shortage costs (10 s).
_QUIET = 100


class Replaying:
    """Computes batches, each again in a tighter way where it ran out of memory.

    A step that is replayed can `note` what `undo` puts back, `compute` a batch, and `abandon` what is unfinished.

    Args:
        owner: What is trained, a model or a loss function.
        ways: How to compute batches at first, by their shapes.
        steps: Where steps that were built are kept.
    """

    def __init__(
        self,
        owner: Any,
        ways: Ways,
        tightening: Tightening,
        journal: Journal,
        steps: dict[Recipe, Any],
    ) -> None:
        self.owner, self.tightening, self._journal, self._steps = owner, tightening, journal, steps
        self._ways, self._way = ways, ways.all[-1]
        self._shape: BatchShape = ()
        self._room = Room()
        self.batch = self._tightened = 0

    def _build(self, recipe: Recipe) -> Any:
        """Builds the step of a recipe."""
        raise NotImplementedError

    def _prepare(self) -> None:
        """Builds all steps, the tightest first: what they keep is there before the first batch."""
        for way in reversed(self._ways.all):
            self._step_of(way.recipe)

    @property
    def recipe(self) -> Recipe:
        """How the last batch was computed."""
        return self._way.recipe

    @property
    def step(self) -> Any:
        """The step of the present recipe."""
        return self._step_of(self.recipe)

    def compute(self, data: Any, spec: Any, batch: Callable[[], Any]) -> Any:
        """Computes a batch; returns what the step that succeeded returns.

        Args:
            data: What the step takes.
            spec: What is known of all batches.
            batch: Returns the batch itself.

        Raises:
            OutOfMemory: If nothing that is allowed was tight enough.
        """
        if not self.batch:
            self._prepare()
        self.batch += 1
        self._shape = self._ways.measure(data, spec)
        self._way = self._ways.choose(self._shape)
        self._way.quiet += 1
        if self._way.quiet > _QUIET and self._way.faster:
            self._try_faster()
        repeated = self._tightened = 0
        while True:
            result, lack = self._try(data, spec)
            if lack is None:
                return result
            repeated = self._answer(lack, batch(), repeated)

    def _try(self, data: Any, spec: Any) -> tuple[Any, Shortage | None]:
        """Computes a batch once; where memory ran out, all is as before, and what was missing is returned."""
        step = self.step
        step.note()
        compute = partial(step.compute, data, spec)
        result, lack = attempt(partial(self._room.measure, (self._way, self.recipe), compute))
        if lack is None:
            return result, None
        if step.computing_has_updated:
            raise self.fail_half_updated(
                lack, "a step that updates weights while it computes cannot be continued half-way"
            )
        check_survivable(self.owner, lack)
        step.undo()
        if step.meets_others:
            raise self._others_wait(lack)
        return None, lack

    def skip(self, spec: Any) -> None:
        """Does without a batch of which this process has no sample."""
        self.batch += 1
        self._shape = ()
        self._way = self._ways.all[-1]
        self.step.note()
        self.step.compute_nothing(spec)

    def settle(self) -> None:
        """Notes that the batch is done: a faster step that was on trial is kept."""
        self._way.learn(self._shape)
        self._way.tighter = None

    def end(self) -> None:
        """Lets go of what only a training needs: gradients of a step that was interrupted, accumulators."""
        for recipe, step in list(self._steps.items()):
            step.abandon()
            if recipe.micro_batch is not None:
                self._steps.pop(recipe)

    def fail_without_room(self, lack: Shortage, need: int | None = None) -> OutOfMemory:
        """Builds the error of a step that nothing can make fit."""
        return OutOfMemory(self.tightening.say_what_would_help(self.recipe, str(lack), need, free()))

    def fail_half_updated(self, lack: Shortage, reason: str, helps: str = "") -> OutOfMemory:
        """Builds the error of an update that was cut off for good.

        Args:
            helps: What would help.
        """
        self.note(lack, f"The update had begun and cannot be finished: {reason}")
        return OutOfMemory(
            f"Memory ran out while the weights were being updated ({lack}), and {reason}. Some weights are "
            f"updated and others are not: continue from a checkpoint. {helps}".rstrip(),
            intact=False,
        )

    def _others_wait(self, lack: Shortage) -> OutOfMemory:
        """Builds the error of a step within which other ranks wait for this one: they cannot begin it again."""
        self.note(lack, "Rolled back; other ranks wait within the step, for statistics of all their samples")
        return OutOfMemory(
            f"Memory ran out ({lack}) in a step within which other ranks wait for batch statistics. All ranks have "
            "to be started again, as `memfit run` does. Give more memory, or do without synchronized statistics."
        )

    def note(self, lack: Shortage, done: str) -> None:
        """Notes that memory ran out, and what is done about it."""
        self._journal.ran_out("training", self.batch, lack, done)

    def _step_of(self, recipe: Recipe) -> Any:
        if recipe not in self._steps:
            self._steps[recipe] = self._build(recipe)
        return self._steps[recipe]

    def _forget(self, recipe: Recipe) -> None:
        """Drops a step that holds memory: in micro-batches a variable for the gradient of every weight."""
        if recipe.micro_batch is not None and not self._ways.uses(recipe):
            self._steps.pop(recipe, None)
            # Its functions refer to it, and custom gradients to them: the next step would find its memory taken.
            forget_gradients_of_dead_graphs()

    def _answer(self, lack: Shortage, data: Any, repeated: int) -> int:
        """Chooses how the batch is tried again; returns how often it then is with the same recipe."""
        way = self._way = self._ways.set_apart(self._way, self._shape) or self._way
        way.quiet = 0
        if way.tighter is not None:  # a trial, and the last one
            way.recipe, way.tighter, way.faster = way.tighter, None, []
            self.note(lack, f"Rolled back; continues in {self.recipe}")
            return 0
        if not repeated and self._room.there_is((way, way.recipe)):
            self.note(lack, "Rolled back; enough memory is free again, so the step is repeated")
            return 1
        need = self._room.need.get((way, way.recipe))
        tighter = self.tightening.tighter(self.recipe, data, need, free(), self._tightened)
        if tighter is None:
            if repeated < _REPEATS and self._may_have_been_unlucky():
                self.note(
                    lack,
                    "Rolled back; nothing that needs less memory is left or allowed, so it is repeated as it is",
                )
                return repeated + 1
            self.note(lack, "Rolled back; nothing that needs less memory is left or allowed")
            raise self.fail_without_room(lack, need)
        before = way.recipe
        way.faster.append(before)
        way.recipe, remark = tighter
        self._tightened += 1
        self._forget(before)
        alone = len(self._ways.all) > 1 and bool(self._shape)
        only = f", as are others of more than {_describe(self._ways.all[0].limits)}" if alone else ""
        self.note(lack, f"Rolled back, and trained again in {self.recipe}{remark}{only}")
        return 0

    def _may_have_been_unlucky(self) -> bool:
        """Whether only the gaps between tensors may have been in the way: they lie elsewhere the next time."""
        if (self._way, self.recipe) in self._room.need:
            return self._room.there_is((self._way, self.recipe))
        return self.recipe.segments is not None  # chosen to fill the memory

    def _try_faster(self) -> None:
        """Goes back to the faster step, on trial, where a step like that has found room before and would now."""
        way = self._way
        way.quiet = 0
        if not self._room.there_is((way, way.faster[-1])):
            return
        way.tighter, way.recipe = way.recipe, way.faster.pop()
        self._journal.note(f"Enough memory is free again: from batch {self.batch} on in {self.recipe}.")


def _describe(limits: Sequence[BatchShape] | None) -> str:
    return " or ".join(", ".join(map(str, shape)) for shape in limits or ())
