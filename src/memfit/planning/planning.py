"""`plan`: the search of the planning room, with steps recorded as this room executes them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from memfit.estimation.estimate import Estimate
from memfit.estimation.estimating import estimate
from memfit.estimation.optimizers import is_alone
from memfit.estimation.recording.keras_step import KerasStep
from memfit.estimation.recording.step import Build, Step
from memfit.planning.candidates import Way
from memfit.planning.early_recording import EarlyRecording
from memfit.planning.plan import Plan
from memfit.planning.recorded_steps import PARTS_RECORDED
from memfit.planning.search import search

# Steps are recorded at a quarter of the batch they are for: larger ones take longer and show no more.
_LARGEST_RECORDED_FOR = 32


def plan(
    model: Any,
    batch_size: int | Literal["max"],
    memory: int | str | None = None,
    allow: str = "near",
    *,
    data: Any = None,
    validation_batch_size: int | None = None,
    device: str | None = None,
) -> Plan:
    """Chooses what to change so that a training fits into the memory.

    The most faithful plan that fits is taken, and of equally faithful ones the fastest. It is found from
    recordings of a few small steps in another process (or, for jobs that clearly fit, from the layers' shapes
    alone); nothing of the model changes.

    Args:
        model: A compiled Keras model.
        batch_size: Samples in one optimizer update, or "max" for as many as fit.
        memory: What the job may take on its device, such as "8GiB" or "80%"; None for what is free there.
        allow: The farthest that the plan may go: "exact", "near", "precision" or "model".
        data: An example of the training data (or the dataset), where the model does not tell its inputs.
        validation_batch_size: Samples in a validation batch; None where there is no validation.
        device: A GPU to plan for, such as "RTX 4090", which need not be there. With memfit[gpu-compiler] installed
            its own compiler's figures are used. Its memory is taken where `memory` is None.

    Returns:
        The plan; print it, or give it to `memfit.fit(..., plan=plan)`.

    Raises:
        DoesNotFit: If no allowed plan fits; it says what would.
        InvalidInput: If an argument is none, or the memory is less than the weights alone take.
    """

    recorder = _StepRecorder(model, data, device)
    try:
        return search(
            model,
            batch_size,
            memory,
            allow,
            data=data,
            validation_batch_size=validation_batch_size,
            recorder=recorder,
            device=device,
        )
    finally:
        recorder.end()


class _StepRecorder:
    """Estimates ways of computing the step by recording them, each in a process of its own."""

    def __init__(self, model: Any, data: Any, device: str | None) -> None:
        self._model, self._data, self._device = model, data, device
        self._early: EarlyRecording | None = None
        self._early_batch = 0

    def __call__(self, way: Way, size: int) -> Estimate:
        batch = self._batch(PARTS_RECORDED * size if way.in_parts else size)
        if self._early is not None and self._serves(batch):
            early, self._early = self._early, None
            early.tell(way)
            if early.way == way:
                return early.result()
            early.end()
        return self._estimate(batch, partial(compute, way=way))

    def begin(self, size: int) -> None:
        """Starts the process of the first recording, which waits to be told what to record."""
        self._early_batch = self._batch(size)
        start = partial(self._estimate, self._early_batch)
        self._early = EarlyRecording(start, compute)

    def expect(self, way: Way) -> None:
        """Lets the process that was begun record a way that is likely to be asked for."""
        if self._early is not None:
            self._early.tell(way)

    def end(self) -> None:
        """Ends a process that was begun for nothing."""
        if self._early is not None:
            self._early.end()

    def _serves(self, batch: int) -> bool:
        """Whether what was begun tells as much of a batch: recorded at a quarter of it, or at half."""
        return batch == self._early_batch if self._by_compiler else batch >= self._early_batch // 2

    @property
    def _by_compiler(self) -> bool:
        """Whether XLA makes another step of each size; else other sizes come from the same recording."""
        return self._model.jit_compile or self._device is not None

    def _batch(self, batch: int) -> int:
        return batch if self._by_compiler else min(batch, _LARGEST_RECORDED_FOR)

    def _estimate(self, batch: int, build: Build, when_copied: Callable[[], None] | None = None) -> Estimate:
        found = estimate(
            self._model,
            batch,
            data=self._data,
            build=build,
            device=self._device,
            when_copied=when_copied,
        )
        # As `fit` runs a planned step in an arena (`one_piece.py`), and as a GPU's allocator has its memory anyway.
        return found.in_one_piece(before_the_optimizer=not self._model.optimizer.built)


def compute(model: Any, way: Way) -> Step:
    """Builds the step that is computed in some way; for a copy of the model that is recorded and thrown away."""
    from memfit.compat import keras_layers
    from memfit.steps.gradients import GradientShelf
    from memfit.steps.micro_batches.step import micro_batched_train_step, whole_batch_train_step
    from memfit.steps.rematerialisation import rematerialise, run_one_by_one
    from memfit.steps.rollback import Rollback
    from memfit.steps.update import Update

    def as_it_is(x: Any) -> Any:
        return keras_layers.forward(model, x, training=True)

    if model.built and is_alone(model):
        model.optimizer.build(model.trainable_variables)  # as the guard does before the first step
    forward = as_it_is if way.segments is None else rematerialise(model, way.segments)
    whole = way.segments is not None and not way.in_parts
    shelf = GradientShelf(own_places=whole)
    apply = None if model.jit_compile else shelf.put
    if way.in_parts:
        step = micro_batched_train_step(
            model, lambda samples: (samples + PARTS_RECORDED - 1) // PARTS_RECORDED, forward, apply
        )
    else:
        step = whole_batch_train_step(model, forward, apply)
    object.__setattr__(model, "train_step", step)
    if model.jit_compile:
        return KerasStep(model, "train")
    if way.segments is not None:
        run_one_by_one().__enter__()  # for tracing, too; the process ends with the recording
    rollback = Rollback(model, settles=True)
    update = Update(model, shelf)
    return _Watched(
        KerasStep(model, "train"),
        rollback.note,
        update.run,
        lambda: [*rollback.places, *shelf.places()],
        nursery=whole,
    )


class _Watched:
    """A step with what the guard does around it."""

    def __init__(
        self,
        step: Step,
        before: Callable[[], None],
        after: Callable[[], None],
        variables: Callable[[], Sequence[Any]],
        *,
        nursery: bool,
    ) -> None:
        self._step, self._before, self._after = step, before, after
        self.trace, self.variables, self.nursery = step.trace, variables, nursery

    def run(self, data: Any, spec: Any) -> Any:
        """Runs a step as the guard does when nothing fails."""
        self._before()
        logs = self._step.run(data, spec)
        self._after()
        return logs
