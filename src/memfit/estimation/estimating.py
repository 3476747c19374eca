"""Predicting the peak memory of a training before it runs."""

from collections.abc import Callable
from functools import partial
from typing import Any

from memfit.budgets.arena import arena_environment
from memfit.budgets.gpu_table import gpu
from memfit.budgets.host import host_memory
from memfit.budgets.isolation import run_isolated
from memfit.errors import CannotTell, InvalidInput, ProcessDied
from memfit.estimation.estimate import Estimate
from memfit.estimation.gpu_compiler.asking import compiled_estimate, doubt
from memfit.estimation.gpu_compiler.refusal import NotCompiled
from memfit.estimation.optimizers import optimizers_of
from memfit.estimation.recording.record import record
from memfit.estimation.recording.recording import Recording
from memfit.estimation.recording.sending import packed
from memfit.estimation.recording.specs import spec_of
from memfit.estimation.recording.step import Build
from memfit.estimation.replay.recorded import RecordedSource
from memfit.estimation.replay.replay import no_collection
from memfit.estimation.replay.script_builder import script_of

# A quarter of the batch asked about shows what depends on it, and the order in which ops of that size run; what a
# step of it would take too long for is left out while recording.
_LARGEST_RECORDED = 64
# XLA takes 20 s for a network of a hundred layers on two cores, and has two batch sizes to compile it for.
_COMPILE_SECONDS = 120.0


def estimate(
    model: Any,
    batch_size: int,
    *,
    data: Any = None,
    device: str | None = None,
    build: Build | None = None,
    when_copied: Callable[[], Any] | None = None,
) -> Estimate:
    """Predicts the peak memory of training a model, from a few small steps in another process.

    The model is copied, without its weights' values, into an isolated process that records every allocation of some
    steps at small batch sizes; the recording is replayed at the batch size asked about through a model of
    TensorFlow's allocator. Nothing of the caller's model, seeds or Keras settings changes.

    Args:
        model: A compiled Keras 3 model.
        batch_size: Samples in a training step.
        data: An example of what `fit` gets, (x, y) or a dataset, where the model does not say its shapes; only
            shapes and types are read.
        device: Name of a GPU the figures are for, such as "RTX 3060". With memfit[gpu-compiler] installed its own
            compiler is asked instead of a recording; `source` says which it was, and why.
        build: Builds the training step to record from the copied model; None for the model's own. It must be
            picklable.
        when_copied: Called once the model is copied, from when on another thread may use it.

    Returns:
        The estimate; other batch sizes come from the same recording with `at`.

    Raises:
        InvalidInput: If the model is not compiled, a shape is unknown, the batch is no positive number, or the
            device is not known.
        ProcessDied: If the recording process was ended.

    Example:
        ```python
        est = memfit.estimate(model, batch_size=64)
        est.peak, est.max_batch("8GiB")
        ```
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise InvalidInput(
            "A batch has at least one sample", received=batch_size, remedy="Give a whole number"
        )
    card = None if device is None else gpu(device)
    if not getattr(model, "compiled", False):
        raise InvalidInput(
            "A model must be compiled to be estimated: the optimizer and the loss take memory too",
            received=type(model).__name__,
            remedy="Call model.compile(...) first",
        )
    fixed = {tensor.shape[0] for tensor in getattr(model, "inputs", None) or []} - {None}
    if fixed:
        raise CannotTell(
            "Steps are recorded at smaller batches, and the inputs of this model allow only one",
            received=f"inputs for batches of {', '.join(map(str, sorted(fixed)))}",
            remedy="Estimate a copy of it whose inputs leave the batch open: keras.Input(shape=...)",
        )
    payload = packed(model, spec_of(model, data))
    if when_copied is not None:
        when_copied()
    optimizers = [optimizer.name for optimizer in optimizers_of(model)]
    not_compiled = ""
    if card is not None:
        try:
            return compiled_estimate(model, payload, build, batch_size, card)
        except NotCompiled as reason:
            not_compiled = f"; not compiled for {card.name}: {reason}{doubt(model)}"
    largest = largest_recorded(batch_size)

    def phase_estimate(phase: str, others: Any) -> Estimate:
        with no_collection():
            builder = build if phase == "train" else None
            recording = _recorded(payload, builder, largest, batch_size, phase, jit=bool(model.jit_compile))
            script = script_of(recording, *optimizers)
        source = RecordedSource(
            script,
            _source(recording) + not_compiled,
            weights=sum(v.bytes for v in recording.variables if v.kind == "weights"),
            batches=recording.batches,
            doubt=max((step.doubt * batch_size / step.batch for step in recording.compiled), default=0.0),
            device=card,
        )
        return Estimate(batch_size, phase, source, others)

    return phase_estimate("train", _Once(partial(phase_estimate, others=None)))


def largest_recorded(batch_size: int) -> int:
    """Returns the largest batch size to record for a target: a quarter of it, or 2 where that leaves nothing."""
    return min(_LARGEST_RECORDED, max(2, batch_size // 4))


class _Once:
    """Remembers what a phase's recording gave, because it takes seconds."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._known: dict[str, Estimate] = {}

    def __call__(self, phase: str) -> Estimate:
        if phase not in self._known:
            self._known[phase] = self._function(phase)
        return self._known[phase]


def _recorded(
    payload: bytes, build: Build | None, largest: int, target: int, phase: str, *, jit: bool
) -> Recording:
    # Generous, but never more than the host has: the arena's cap is only an upper bound.
    environment = arena_environment(max(2**30, int(host_memory().free)))
    environment |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    run = partial(run_isolated, record, environment=environment)
    if not jit:
        return run((payload, build, largest, target, phase))
    # XLA may take minutes, or all of the memory, for a batch it never ran; a smaller one is a way out.
    try:
        return run((payload, build, largest, target, phase), timeout=_COMPILE_SECONDS)
    except TimeoutError:
        failure = f"in {_COMPILE_SECONDS:g} s"
    except ProcessDied as died:
        failure = f"({died.signal.name if died.signal is not None else f'exit code {died.exit_code}'})"
    return run((payload, build, largest, failure, phase))


def _source(recording: Recording) -> str:
    sizes = ", ".join(map(str, recording.batches))
    compiled = "".join(
        f", compiled by XLA for batch {step.batch}"
        + (f" because the batch asked about did not compile {step.failure}" if step.failure else "")
        for step in recording.compiled
    )
    return (
        f"recorded on this CPU at batch {sizes}{compiled}, replayed through a model of TensorFlow's allocator"
    )
