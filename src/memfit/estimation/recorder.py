"""Recording the steps of one search: one process that has TensorFlow, and a fork of it for every recording."""

import logging
import time
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self

from memfit.budgets.gpu_table import GPU
from memfit.compat import keras_training
from memfit.errors import InvalidInput, ProcessDied, StepFailed
from memfit.estimation.cache import is_on, remembered
from memfit.estimation.estimate import Estimate, check_batch
from memfit.estimation.fingerprint import fingerprint
from memfit.estimation.gpu_compiler.asking import describe_doubt, estimate_with_compiler
from memfit.estimation.gpu_compiler.compiled import NotCompiled
from memfit.estimation.optimizers import optimizers_of
from memfit.estimation.recording.record import record
from memfit.estimation.recording.recording import Recording
from memfit.estimation.recording.sending import packed
from memfit.estimation.recording.specs import Spec, fixed_batch, spec_of
from memfit.estimation.recording.step import Build
from memfit.estimation.recording_process import Recordings, recording_process
from memfit.estimation.replay.recorded import RecordedSource
from memfit.estimation.replay.replay import no_collection
from memfit.estimation.replay.script_builder import build_script
from memfit.estimation.waiting import NOTHING_WAITS, read_waiting

_progress = logging.getLogger("memfit.progress")
# XLA's step is asked about by its compiler for the batch itself; one of it, recorded, shows what is beside.
_LARGEST_COMPILED = 64
# XLA takes 20 s for a network of a hundred layers on two cores, and has two batch sizes to compile it for.
_COMPILE_SECONDS = 120.0


class Recorder:
    """Answers the questions of one search about a model's step.

    A context manager: the model is copied when the block is entered, and a process that imports TensorFlow starts,
    so that the caller may do something else before the first question. Threads may ask while the caller uses the
    model.

    Args:
        model: A compiled Keras model, or a loss function (`steps.losses`).
        data: An example of the training data, or None; the `Spec` of a loss function's tensors.
        device: A GPU to ask about; None for this machine's CPU.

    Raises:
        InvalidInput: If the model is not compiled.
        CannotTell: If a shape is unknown, or, when the block is entered, the model cannot be sent to it.
    """

    def __init__(self, model: Any, data: Any = None, device: GPU | None = None) -> None:
        self._card = device
        _check(model)
        self._model, self._spec = model, spec_of(model, data)
        self._fixed_batch = fixed_batch(model)
        # A loop that calls a loss function has a pipeline of its own, if it has one.
        piped = device is None and not isinstance(data, Spec)
        self._waiting = read_waiting(self._spec, data) if piped else NOTHING_WAITS
        self._server: Recordings | None = None
        self._exit = ExitStack()
        self._optimizers = [optimizer.name for optimizer in optimizers_of(model)]
        self._payload = b""
        self._fingerprint: str | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if self._card is None:
                self._server = stack.enter_context(recording_process())
            with keras_training.knowing_if_eager(self._model):
                self._payload = packed(self._model, self._spec)
                self._fingerprint = fingerprint(self._model, self._spec.without_texts()) if is_on() else None
            self._exit = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server = None
        self._exit.close()

    def estimate(self, batch_size: int, build: Build | None = None) -> Estimate:
        """Estimates a training step, the model's own or the one that `build(model)` returns in the other process.

        Raises:
            InvalidInput: If the batch size is not a positive whole number.
            StepFailed: If the step fails on synthetic data.
            ProcessDied: If the recording process was ended.
        """
        check_batch(self._fixed_batch, batch_size)
        not_compiled = ""
        if self._card is not None:
            try:
                if self._fixed_batch is not None:
                    raise NotCompiled("its inputs allow only one batch size, and several are compiled")
                return estimate_with_compiler(self._model, self._payload, build, batch_size, self._card)
            except NotCompiled as reason:
                not_compiled = f"; not compiled for {self._card.name}: {reason}{describe_doubt(self._model)}"

        def estimate_phase(phase: str, others: Any) -> Estimate:
            builder = build if phase == "train" else None
            source, made = remembered(
                self._key(builder, batch_size, phase),
                lambda: self._make_source(builder, batch_size, phase),
                about=f"{phase}, batch {batch_size}: {self._model.name}",
            )
            self._fixed_batch = source.fixed_batch
            if made is not None:
                day = time.strftime("%Y-%m-%d %H:%M", time.localtime(made))
                source.text = f"recorded before ({day}), {source.text.removeprefix('recorded ')}"
            source.text += not_compiled
            return Estimate(batch_size, phase, source, others, waiting=self._waiting)

        if not hasattr(self._model, "test_step"):  # a loss function, which only trains
            return estimate_phase("train", None)
        return estimate_phase("train", _Once(partial(estimate_phase, others=None)))

    def _key(self, build: Build | None, batch_size: int, phase: str) -> tuple[Any, ...] | None:
        builder = fingerprint(build)
        if self._fingerprint is None or builder is None:
            return None
        return ("estimate", self._fingerprint, builder, batch_size, phase, self._card)

    def _make_source(self, build: Build | None, batch_size: int, phase: str) -> RecordedSource:
        if phase != "train":
            _progress.info("recording a few small steps that %s, batch %d", phase, batch_size)
        with no_collection():
            recording, only = self._record_as_it_runs(build, batch_size, phase)
            script = build_script(recording, *self._optimizers)
        return RecordedSource(
            script,
            _describe(recording),
            weights=sum(v.bytes for v in recording.variables if v.kind == "weights"),
            batches=recording.batches,
            doubt=max((step.doubt * batch_size / step.batch for step in recording.compiled), default=0.0),
            device=self._card,
            seconds=recording.seconds,
            fixed_batch=only,
        )

    def _record_as_it_runs(
        self, build: Build | None, batch_size: int, phase: str
    ) -> tuple[Recording, int | None]:
        """Records at several batch sizes, or at the only one there is; returns which that is.

        Code may have the batch size written into it, as `tf.reshape(x, (BATCH, ...))`, and fail with any other.
        """
        try:
            return self._record(build, batch_size, phase, self._fixed_batch), self._fixed_batch
        except StepFailed as failure:
            if self._fixed_batch is not None:
                raise
            try:
                return self._record(build, batch_size, phase, batch_size), batch_size
            except StepFailed:
                raise failure from None

    def _record(self, build: Build | None, batch_size: int, phase: str, only: int | None) -> Recording:
        largest = only or largest_recorded(batch_size, compiled=bool(self._model.jit_compile))
        arguments = (self._payload, build, largest)
        if not self._model.jit_compile:
            return self._run((*arguments, batch_size, phase, only))
        # XLA may take minutes, or all of the memory, for a batch it never ran; a smaller one is a way out.
        try:
            return self._run((*arguments, batch_size, phase, only), timeout=_COMPILE_SECONDS)
        except TimeoutError:
            failure = f"in {_COMPILE_SECONDS:g} s"
        except ProcessDied as died:
            failure = f"({died.signal.name if died.signal is not None else f'exit code {died.exit_code}'})"
        return self._run((*arguments, failure, phase, only))

    def _run(self, arguments: tuple[Any, ...], timeout: float | None = None) -> Recording:
        if self._server is not None:
            return self._server.run(record, arguments, timeout=timeout)
        with recording_process() as server:
            return server.run(record, arguments, timeout=timeout)


def largest_recorded(batch_size: int, *, compiled: bool) -> int:
    """Returns the batch size to record for a target; whether the time allows it is seen then.

    It is the target itself where that can be: TensorFlow's kernels take another way, with another workspace, from
    some batch size on. A Conv3D's was 98 MiB at 8 samples, 537 at 12 and 335 at 16.
    """
    return min(_LARGEST_COMPILED, max(2, batch_size // 4)) if compiled else batch_size


class _Once:
    """Remembers what a phase's recording gave, because it takes seconds; not `cache`, which cannot be pickled."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._known: dict[str, Estimate] = {}

    def __call__(self, phase: str) -> Estimate:
        if phase not in self._known:
            self._known[phase] = self._function(phase)
        return self._known[phase]


def _check(model: Any) -> None:
    if not getattr(model, "compiled", False):
        raise InvalidInput(
            "A model must be compiled to be estimated: the optimizer and the loss take memory too",
            received=type(model).__name__,
            remedy="Call model.compile(...) first",
        )


def _describe(recording: Recording) -> str:
    sizes = ", ".join(map(str, recording.batches))
    compiled = "".join(
        f", compiled by XLA for batch {step.batch}"
        + (f" because the batch in question did not compile {step.failure}" if step.failure else "")
        for step in recording.compiled
    )
    return (
        f"recorded on this CPU at batch {sizes}{compiled}, replayed through a model of TensorFlow's allocator"
    )
