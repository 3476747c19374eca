"""The gradients of a loss function as a step that can be recorded, computed under guard, and undone."""

import gc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from memfit.budgets.peaks import take_one_region
from memfit.errors import InvalidInput
from memfit.steps.losses.call import CallSamples
from memfit.steps.losses.function import GATHER, MEAN, LossFunction
from memfit.steps.micro_batches.accumulators import Accumulators, OtherKindOfGradient
from memfit.steps.micro_batches.batch import Collected, PartResult, Parts
from memfit.steps.micro_batches.samples import Part
from memfit.steps.recipe import Recipe
from memfit.steps.rematerialisation import differentiate
from memfit.steps.rollback import Rollback
from memfit.steps.tracing import Executor


class Gradients(NamedTuple):
    """What a step gives: the loss, the function's further outputs, flat, and the gradients."""

    loss: Any
    outputs: list[Any]
    gradients: list[Any]


class GradientStep:
    """The step that a recipe describes for a loss function: its gradients. What it changes can be put back.

    Args:
        parts: In how many micro-batches to cut a batch, instead of the recipe's size: recordings have smaller
            batches than it is for.
    """

    computing_has_updated = False
    meets_others = False

    def __init__(self, loss: LossFunction, recipe: Recipe, *, parts: int | None = None) -> None:
        self.parts = 1 if recipe.micro_batch is None or parts is None else parts
        take_one_region()
        self._loss, self._recipe = loss, recipe
        size = recipe.micro_batch
        self._size: Any = size if parts is None else lambda samples: (samples + parts - 1) // parts
        self._accumulators = None if size is None else Accumulators(loss)
        self._executor = Executor(recipe)
        self._rollback = Rollback(lambda: loss.seen.changing, settles=not recipe.is_stock)
        self._functions: dict[Any, Any] = {}

    any_batch = False  # tensors of a call tell their size
    is_given_samples = True

    def trace(self, spec: Any) -> Any:
        """Traces the step for tensors of these specs; returns its ConcreteFunction."""
        return self._executor.run(lambda: self._function(tuple(spec)))

    def run(self, data: Any, spec: Any) -> Gradients:
        """Does a whole step in which nothing fails."""
        self.trace(spec)
        self.note()
        return self.compute(tuple(map(tf.convert_to_tensor, data)), spec)

    def note(self) -> None:
        """Notes what `undo` puts back."""
        self._rollback.note()

    def compute(self, tensors: Sequence[Any], spec: Any) -> Gradients:
        """Computes loss and gradients; `spec` are the specs of the trace to take."""
        return Gradients(*self._executor.run(lambda: self._function(tuple(spec))(*tensors)))

    def undo(self) -> None:
        """Puts back what `compute` changed."""
        self._rollback.undo()
        gc.collect()

    def abandon(self) -> None:
        """Does nothing: gradients of a step that failed are gone with it."""

    def variables(self) -> list[tf.Variable]:
        """The variables that the step keeps beside the function's own."""
        return self._rollback.buffers

    def differentiate(self, tensors: Sequence[Any]) -> Gradients:
        """Computes loss and gradients in the graph that is being traced, or eagerly.

        Raises:
            InvalidInput: If the loss depends on none of the variables.
        """
        if not self._recipe.is_stock:
            self._loss.look(tensors)
        if self._accumulators is None:
            gradients = self._differentiate_part(tensors)
        else:
            gradients = self._add_up_parts(tensors, self._accumulators)
        if all(gradient is None for gradient in gradients.gradients):
            raise InvalidInput(
                "The loss must depend on the given variables, but none of them has a gradient",
                received=self._loss.name,
                remedy="Compute the loss from them with TensorFlow's or Keras's ops, not with NumPy or argmax",
            )
        return gradients

    def _function(self, spec: tuple[Any, ...]) -> Any:
        if spec not in self._functions:
            body = tf.autograph.experimental.do_not_convert(lambda *tensors: self.differentiate(tensors))
            jit = True if self._loss.jit_compile else None
            function = tf.function(body, autograph=False, jit_compile=jit)
            self._functions[spec] = traced = function.get_concrete_function(*spec)
            if self._recipe.is_stock:
                self._loss.examine(traced.graph)
        return self._functions[spec]

    def _differentiate_part(
        self, tensors: Sequence[Any], share: Callable[[Any], Any] = lambda x: x
    ) -> Gradients:
        """Differentiates a whole batch, or what `share` makes of the loss of a part."""
        loss, values = self._loss, self._loss.values
        if self._recipe.segments is not None and not tf.executing_eagerly():

            def compute() -> tuple[Any, Any]:
                value, outputs = loss.compute(tensors)
                return share(value), (value, outputs)

            _, (value, outputs), gradients = differentiate(compute, values, self._recipe.segments)
            return Gradients(value, outputs, gradients)
        with tf.GradientTape() as tape:
            value, outputs = loss.watch(tensors) if self._recipe.is_stock else loss.compute(tensors)
            objective = share(value)
        return Gradients(value, outputs, tape.gradient(objective, values))

    def _add_up_parts(self, tensors: Sequence[Any], accumulators: Accumulators) -> Gradients:
        weights = self._loss.trainable_variables
        batch = Parts(CallSamples(self._loss.call, tuple(tensors)), self._size, self._loss)
        while True:
            joined = Joined(self._loss)

            def compute(part: Part, joined: Joined = joined) -> PartResult:
                gradients = self._differentiate_part(part.x, lambda value: joined.share(value, part))
                rows = accumulators.add(weights, gradients.gradients)
                sums, collected = joined.split(gradients, part)
                return sums, [*rows, *collected]

            try:
                accumulators.clear(weights)
                specs = accumulators.row_specs(weights)
                sums, rows = batch.fold(
                    compute,
                    joined.zeros,
                    [*specs, *joined.rows],
                    written=lambda: accumulators.written(weights),
                )
            except OtherKindOfGradient:
                continue
            loss, outputs = joined.merge(sums, rows[len(specs) :])
            return Gradients(loss, outputs, accumulators.gradients(weights, rows[: len(specs)]))


class Joined:
    """The loss and the further outputs of a batch, from those of its parts."""

    def __init__(self, loss: LossFunction) -> None:
        self._dtype, self._sums = loss.seen.dtype, loss.sums
        self._specs, self._ways = loss.seen.outputs, loss.ways_to_join()
        added = [spec for spec, way in zip(self._specs, self._ways, strict=True) if way != GATHER]
        for spec in added:
            if not spec.shape.is_fully_defined():
                raise InvalidInput(
                    "Outputs that are added up over micro-batches must have the same shape in each",
                    received=spec.shape,
                    remedy='Return it with one row for each sample, and outputs="gather"',
                )
        self.zeros = (tf.zeros([], tf.float64), *(tf.zeros(spec.shape, spec.dtype) for spec in added))
        self.rows = [
            Collected(tf.TensorSpec([None, *spec.shape[1:]], spec.dtype))
            for spec, way in zip(self._specs, self._ways, strict=True)
            if way == GATHER
        ]

    def share(self, value: Any, part: Part) -> Any:
        """Returns the share of the batch's loss that a part's loss is."""
        return value if self._sums else value * part.fraction

    def split(self, gradients: Gradients, part: Part) -> tuple[tuple[Any, ...], list[Any]]:
        """Returns what of a part is added up, and what is gathered."""
        pairs = list(zip(gradients.outputs, self._ways, strict=True))
        added = [output * part.fraction if way == MEAN else output for output, way in pairs if way != GATHER]
        loss = tf.cast(self.share(gradients.loss, part), tf.float64)
        return (loss, *added), [output for output, way in pairs if way == GATHER]

    def merge(self, sums: Sequence[Any], rows: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Returns the loss and the outputs of the batch."""
        added, gathered = iter(sums[1:]), iter(rows)
        outputs = [next(gathered if way == GATHER else added) for way in self._ways]
        return tf.cast(sums[0], self._dtype), outputs
