"""`gradients`: the loss and the gradients of a loop of one's own, in the memory there is."""

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from memfit.budgets.peaks import PeakMeter, device_name, take_one_region
from memfit.compat.tf_graphs import compiles_with_xla
from memfit.compat.tf_runtime import compile_options
from memfit.errors import InvalidInput
from memfit.estimation.estimate import Estimate
from memfit.estimation.recorder import Recorder
from memfit.planning.fidelity import Fidelity
from memfit.planning.loss_job import LossJob, few_samples_of, plan_loss, spec_of_call
from memfit.planning.plan import Plan
from memfit.planning.planning import read_memory
from memfit.sizes import Size
from memfit.steps.losses.call import Call, read_call
from memfit.steps.losses.function import LossFunction, run_outside
from memfit.steps.losses.step import GradientStep
from memfit.steps.losses.weights import Weight, weight_of
from memfit.steps.recipe import Recipe
from memfit.training.beside import measure_beside
from memfit.training.guard.events import Journal
from memfit.training.guard.replaying import Replaying
from memfit.training.guard.tightening import LossTightening
from memfit.training.guard.ways import Ways
from memfit.training.run import Run
from memfit.training.summary import describe_plan
from memfit.training.telling import Teller


def gradients(
    variables: Sequence[Any],
    *,
    memory: int | str | None = None,
    allow: str = "near",
    outputs: Any = None,
) -> Callable[[Callable[..., Any]], "GuardedLoss"]:
    """Makes a function that returns a loss also return its gradients, within a memory budget.

    What it returns is what `tf.GradientTape` would give for the whole batch. If `memory` requires it, the
    batch is computed with gradient accumulation (micro-batches) or activation checkpointing (rematerialisation).
    If memory runs out anyway, what the function has changed (statistics, seeds, metrics) is rolled back and the
    batch is computed again with less memory.

    Args:
        variables: What to differentiate by, such as `model.trainable_variables`; of Keras or TensorFlow.
        memory: What the loop may take, such as "8GiB"; a plan is made for it in the first call. None for no
            plan, only the rollback when memory runs out.
        allow: The most that may be changed: "exact" or "near".
        outputs: What becomes of further outputs of the function when a batch is computed in parts: "gather", "sum"
            or "mean", one for all or one for each. None gathers what has a row for each sample, adds up whole
            numbers, and treats other numbers as the loss.

    Returns:
        A decorator. The function that it makes returns what the function returns, and the gradients; it has the
        attributes `plan` and `memory` (a `Run`).

    Raises:
        InvalidInput: If there are no variables; in the first call, if the function returns no scalar, changes
            trainable variables, or cannot be differentiated.
        DoesNotFit: In the first call, if no allowed plan fits.
        OutOfMemory: In any call, if memory ran out and nothing that is allowed was tight enough.

    Example:
        ```python
        @memfit.gradients(model.trainable_variables, memory="4GiB")
        def loss(x, y):
            return loss_fn(y, model(x, training=True))

        for x, y in dataset:
            value, grads = loss(x, y)
            optimizer.apply(grads, model.trainable_variables)
        ```
    """
    weights = [weight_of(variable) for variable in variables]
    if not weights:
        raise InvalidInput(
            "`memfit.gradients` needs variables to differentiate by, and there are none",
            received=variables,
            remedy="Build the model first: model.build(input_shape), or call it once",
        )
    return lambda function: GuardedLoss(function, weights, memory, Fidelity.read(allow), outputs)


class GuardedLoss:
    """A function under `memfit.gradients`.

    Attributes:
        plan: The plan that is followed; None where none was made.
    """

    def __init__(
        self,
        function: Any,
        weights: Sequence[Weight],
        memory: int | str | None,
        allow: Fidelity,
        outputs: Any,
    ) -> None:
        options = {}
        if isinstance(function, tf.types.experimental.PolymorphicFunction):
            function, options = function.python_function, compile_options(function)
        self._function, self._weights, self._outputs = function, list(weights), outputs
        self._jit_compile = bool(options.get("jit_compile"))
        self._memory, self._allow = memory, allow
        self._journal = Journal()
        self._measured = Size(0)
        self._kinds: dict[str, _CallKind] = {}
        self.plan: Plan | None = None
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__

    # A caller's tf.function would rewrite memfit's own code; a function that has to be rewritten is in `_trace`.
    @tf.autograph.experimental.do_not_convert
    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, list[Any]]:
        """Returns what the function returns for a batch, and the gradients, None for a variable that has none."""
        call, tensors = read_call(args, kwargs)
        if not tf.executing_eagerly():
            return self._compute_inside(call, tensors)
        kind = self._kind_of(call, tensors)
        with PeakMeter(device_name()) as meter:
            result = kind.differentiate(tensors)
        self._measured = max(self._measured, meter.peak)
        return result

    @property
    def memory(self) -> Run:
        """What was planned, what was measured, and what happened, up to now."""
        return Run(
            plan=self.plan,
            measured=self._measured or None,
            events=tuple(self._journal.events),
        )

    def estimate_call(self, *args: Any) -> Estimate:
        """Predicts the peak memory of a plain call; what `memfit.estimate(function, ...)` calls.

        Args:
            args: What the function is called with, as tensors or as tensor specs.

        Raises:
            InvalidInput: If the size of the batch or another dimension is not known.
        """
        call, tensors = read_call(args, {})
        loss = self._make_loss(call)
        samples = _check_samples(call, tensors)
        _look(loss, tensors)
        job = LossJob(loss, samples, Size(0), self._allow, data=spec_of_call(loss, tensors))
        with Recorder(loss, job.spec) as recorder:
            return recorder.estimate(samples, job.build(Recipe()))

    def _compute_inside(self, call: Call, tensors: tuple[Any, ...]) -> tuple[Any, list[Any]]:
        """Computes a call that is being traced, in the caller's graph."""
        known = self._kinds.get(call.key)
        loss = self._make_loss(call) if known is None else copy.copy(known.loss)
        _look(loss, tensors)
        if self._memory is not None and self.plan is None:
            run_outside(lambda: self._make_plan(loss, tensors))
        loss.jit_compile = compiles_with_xla(tf.compat.v1.get_default_graph())
        recipe = self._recipe if known is None else known.recipe
        if not any(event.says == _INSIDE for event in self._journal.events):
            self._journal.note(_INSIDE)
        gradients = GradientStep(loss, recipe).differentiate(tensors)
        return loss.pack_result(gradients.loss, gradients.outputs), gradients.gradients

    def _kind_of(self, call: Call, tensors: tuple[Any, ...]) -> "_CallKind":
        if call.key not in self._kinds:
            loss = self._make_loss(call)
            if self._memory is not None and self.plan is None:
                _look(loss, tensors)
                self._make_plan(loss, tensors)
            tightening = LossTightening(loss, self._allow, self.plan)
            self._kinds[call.key] = _CallKind(loss, Ways(self._recipe), tightening, self._journal, {})
        return self._kinds[call.key]

    @property
    def _recipe(self) -> Recipe:
        return Recipe() if self.plan is None else self.plan.recipe

    def _make_loss(self, call: Call) -> LossFunction:
        return LossFunction(
            self._function, self._weights, call, outputs=self._outputs, jit_compile=self._jit_compile
        )

    def _make_plan(self, loss: LossFunction, tensors: tuple[Any, ...]) -> None:
        begun = time.monotonic()
        memory, samples = read_memory(self._memory), _check_samples(loss.call, tensors)
        few = few_samples_of(loss, tensors)
        job = LossJob(loss, samples, memory, self._allow, spec_of_call(loss, tensors), samples=few)
        with Teller().progress():
            self.plan = plan_loss(job, *measure_beside(loss, tensors))
        take_one_region()
        head = f"{self.__name__}(): batch {samples}, in {memory}"
        seconds = time.monotonic() - begun
        lines = describe_plan(self.plan, head, "a plain GradientTape", seconds=seconds)
        Teller().tell(lines)


_INSIDE = (
    "Called inside a tf.function: planned levers are used, but memory that runs out there ends that function; only "
    "a call outside of tf.function can be rolled back and done again."
)


class _CallKind(Replaying):
    """A loss function as it is called in one way, under guard."""

    def __init__(self, loss: LossFunction, *replayed: Any) -> None:
        super().__init__(loss, *replayed)
        self.loss = loss
        self._specs: list[tuple[Any, ...]] = []

    def differentiate(self, tensors: tuple[Any, ...]) -> tuple[Any, list[Any]]:
        """Computes a batch; returns what the function returns, and the gradients."""
        spec = self._find_spec(tensors)
        gradients = self.compute(tensors, spec, lambda: tensors)
        self.settle()
        return self.loss.pack_result(gradients.loss, gradients.outputs), list(gradients.gradients)

    def _build(self, recipe: Recipe) -> GradientStep:
        return GradientStep(self.loss, recipe)

    def _find_spec(self, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the specs of a trace for these tensors: their own, or any batch size once there were two."""
        for known in self._specs:
            if all(spec.is_compatible_with(tensor) for spec, tensor in zip(known, tensors, strict=True)):
                return known
        exact = tuple(map(tf.type_spec_from_value, tensors))
        spec = self._open_batch(exact) if self._specs else exact
        _trace(self.loss, lambda: self.step.trace(spec))
        self._specs.append(spec)
        return spec

    def _open_batch(self, exact: tuple[Any, ...]) -> tuple[Any, ...]:
        """Leaves the number of samples open, where the function can be traced without knowing it."""
        opened = tuple(
            tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)
            if has and isinstance(spec, tf.TensorSpec)
            else spec
            for spec, has in zip(exact, self.loss.call.has_samples, strict=True)
        )
        try:
            self.step.trace(opened)
        except Exception:  # whatever a function raises that counts its samples in Python
            return exact
        return opened


def _look(loss: LossFunction, tensors: Sequence[Any]) -> None:
    _trace(loss, lambda: loss.look(tensors))


def _trace(loss: LossFunction, trace: Callable[[], Any]) -> None:
    """Traces a function as it is, and if it branches on tensors as AutoGraph rewrites it."""
    try:
        trace()
    except tf.errors.OperatorNotAllowedInGraphError:
        if not loss.convert():
            raise
        trace()


def _check_samples(call: Call, tensors: Sequence[Any]) -> int:
    samples = call.count_samples(tensors)
    if samples is None:
        raise InvalidInput(
            "Planning or estimating a function needs a batch of known size",
            received=[tuple(tensor.shape) for tensor in tensors],
            remedy="Call it once outside of tf.function first, or batch with drop_remainder=True",
        )
    return samples
