"""Training under guard: a step that runs out of memory is rolled back, tightened and done again."""

import gc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from memfit.data.shapes import BatchShape
from memfit.steps.host_arrays import HostArrays
from memfit.steps.installing import is_custom
from memfit.steps.placeholder_buffers import settle_logs
from memfit.steps.recipe import Recipe
from memfit.steps.train_step import TrainStep, build
from memfit.training.guard.events import Journal, OutOfMemory, Shortage, attempt, check_survivable, free
from memfit.training.guard.reading import Reader, check_shapes
from memfit.training.guard.room import Room
from memfit.training.guard.tightening import Tightening
from memfit.training.guard.ways import Ways

# How often an update is taken up again: each time TensorFlow itself waits 10 s for memory.
_UPDATES = 3
# How often a step is repeated that cannot be made tighter; each time costs TensorFlow's 10 s, too.
_REPEATS = 3
# Steps without a shortage after which the faster step is tried again: far more than a shortage costs (10 s).
_QUIET = 100


class GuardedTraining:
    """Stands in for a model's `train_function`.

    Args:
        host: What steps read their samples from; None where the reader gives whole batches.
        after_batch: What to call with the number of each batch that was trained, or None.
    """

    def __init__(
        self,
        model: keras.Model,
        ways: Ways,
        tightening: Tightening,
        reader: Reader,
        journal: Journal,
        steps: dict[Recipe, TrainStep],
        host: HostArrays | None = None,
        after_batch: Callable[[int], None] | None = None,
    ) -> None:
        self._model, self._tightening, self._reader, self._journal = model, tightening, reader, journal
        self._steps, self._host, self._after_batch = steps, host, after_batch
        self._batch = 0
        self._ways, self._way = ways, ways.all[-1]
        self._room = Room()

    @property
    def recipe(self) -> Recipe:
        """How the last batch was computed."""
        return self._way.recipe

    def __call__(self, iterator: Any) -> Any:
        """Trains as many batches as Keras wants to execute at once; returns the last one's logs."""
        return self._reader.each(iterator, self._model.steps_per_execution, self._train)

    def end(self) -> None:
        """Lets go of what only a training needs: gradients of a step that was interrupted, accumulators."""
        for recipe, step in list(self._steps.items()):
            step.abandon()
            if recipe.micro_batch is not None:
                self._steps.pop(recipe)

    def _train(self, data: Any) -> Any:
        if not self._batch:
            self._build_all()
        self._batch += 1
        shape = self._ways.measure(data, self._reader.spec)
        self._way = self._ways.choose(shape)
        self._way.quiet += 1
        if self._way.quiet > _QUIET and self._way.faster:
            self._try_faster()
        repeated = 0
        while True:
            self._step().note()
            logs, lack = self._compute(data)
            if lack is None:
                break
            if self._step().computing_has_updated:
                raise self._half_updated(
                    lack, "a step that updates weights while it computes cannot be taken up half-way"
                )
            check_survivable(self._model, lack)
            self._step().undo()
            repeated = self._answer(lack, data, shape, repeated)
        self._update()
        self._way.learn(shape)
        if self._after_batch is not None:
            self._after_batch(self._batch)
        self._way.tighter = None
        return settle_logs(logs)

    def _compute(self, data: Any) -> tuple[Any, Shortage | None]:
        compute = partial(self._step().compute, data, self._reader.spec)
        try:
            return attempt(lambda: self._room.measure((self._way, self.recipe), compute))
        except (tf.errors.OpError, RuntimeError):
            if self._host is None and not is_custom(self._model, "train_step"):
                check_shapes(self._model, data, self._batch)
            raise

    def _step(self) -> TrainStep:
        return self._build(self.recipe)

    def _build(self, recipe: Recipe) -> TrainStep:
        if recipe not in self._steps:
            self._steps[recipe] = build(self._model, recipe, self._host)
        return self._steps[recipe]

    def _build_all(self) -> None:
        """Builds the steps of all ways, the tightest first: what they keep is there before the first step."""
        for way in reversed(self._ways.all):
            self._build(way.recipe)

    def _forget(self, recipe: Recipe) -> None:
        """Drops a step that holds memory: in micro-batches a variable for the gradient of every weight."""
        if recipe.micro_batch is not None and not self._ways.uses(recipe):
            self._steps.pop(recipe, None)

    def _answer(self, lack: Shortage, data: Any, shape: BatchShape, repeated: int) -> int:
        """Chooses how the batch is tried again; returns how often it then is with the same recipe."""
        way = self._way = self._ways.set_apart(self._way, shape) or self._way
        way.quiet = 0
        if way.tighter is not None:  # a trial, and the last one
            way.recipe, way.tighter, way.faster = way.tighter, None, []
            self._note(lack, f"Rolled back; goes on in {self.recipe}")
            return 0
        if not repeated and self._room.there_is((way, way.recipe)):
            self._note(lack, "Rolled back; there is room for the step again, and it is repeated")
            return 1
        left, need = free(), self._room.need.get((way, way.recipe))
        batch = data if self._host is None else self._host.read(data)
        tighter = self._tightening.tighter(self.recipe, batch, need, left)
        if tighter is None:
            if repeated < _REPEATS and self._may_have_been_unlucky():
                self._note(lack, "Rolled back; nothing tighter is left or allowed, and it is repeated")
                return repeated + 1
            self._note(lack, "Rolled back; nothing tighter is left or allowed")
            raise OutOfMemory(self._tightening.say_what_would_help(self.recipe, str(lack), need, left))
        before = way.recipe
        way.faster.append(before)
        way.recipe, remark = tighter
        self._forget(before)
        alone = len(self._ways.all) > 1 and bool(shape)
        only = f", as are others of more than {_describe(self._ways.all[0].limits)}" if alone else ""
        self._note(lack, f"Rolled back, and trained again in {self.recipe}{remark}{only}")
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
        self._journal.note(f"There is room again: from batch {self._batch} on in {self.recipe}.")

    def _update(self) -> None:
        """Updates the weights, and takes the update up again where it was cut off."""
        _, lack = attempt(self._step().update)
        for _ in range(_UPDATES):
            if lack is None:
                return
            gc.collect()
            if (reason := self._step().update_lost) is not None:
                raise self._half_updated(lack, reason)
            self._note(lack, "Kept the gradients; the update is taken up where it was cut off")
            _, lack = attempt(self._step().finish_update)
        if lack is None:
            return
        if self._step().update_has_begun:
            raise self._half_updated(lack, "there was no memory to finish it")
        self._step().undo()
        self._note(lack, "Rolled back; there is no memory for the optimizer's update")
        raise OutOfMemory(self._tightening.say_what_would_help(self.recipe, str(lack), None, free()))

    def _half_updated(self, lack: Shortage, reason: str) -> OutOfMemory:
        self._note(lack, f"The update had begun and cannot be finished: {reason}")
        return OutOfMemory(
            f"Memory ran out while the weights were being updated ({lack}), and {reason}. A part of the weights "
            "is updated and the rest is not: go on from a checkpoint.",
            intact=False,
        )

    def _note(self, lack: Shortage, done: str) -> None:
        self._journal.ran_out("training", self._batch, lack, done)


def _describe(limits: Sequence[BatchShape] | None) -> str:
    return " or ".join(", ".join(map(str, shape)) for shape in limits or ())
