"""What a step that XLA compiles asks for at a batch size that is never run: XLA's own buffer assignment says it."""

from typing import Any

from memfit.compat.tf_profiles import read_hlo
from memfit.estimation.recording.recording import Compiled
from memfit.estimation.recording.recording import Step as RecordedStep
from memfit.estimation.recording.specs import Spec, bytes_per_sample
from memfit.estimation.recording.step import Step
from memfit.estimation.recording.trace import Event

# XLA asks as the function it was made of, whose name TensorFlow begins like this.
_COMPILED = "__inference_"


def compiled_for(step: Step, spec: Spec, recorded: RecordedStep, target: int | str) -> Compiled:
    """Compiles a step for the batch size asked about, or, where that cannot be, for half of the recorded one.

    The recorded batch and its half make a line. What that is worth is seen at the recorded batch itself, which the
    line of its quarter and its half should meet.

    Args:
        recorded: The step's events at the batch that was recorded.
        target: The batch size asked about; why not, where it is known not to compile.
    """
    if isinstance(target, str):
        failure = target
    else:
        try:
            return Compiled(target, events_at(step, spec, recorded, target))
        except Exception as error:  # whatever XLA finds wrong with a size it never saw
            failure = f"({type(error.__cause__ or error).__name__})"
    batch = recorded.batch
    half, quarter = max(1, batch // 2), max(1, batch // 4)
    events = events_at(step, spec, recorded, half)
    true, middle = _asked(recorded.events), _asked(events)
    doubt = 0.0
    if quarter < half:
        slope = (middle - _asked(events_at(step, spec, recorded, quarter))) / (half - quarter)
        doubt = abs(middle + slope * (batch - half) - true) / true
    return Compiled(half, events, doubt, failure)


def _asked(events: tuple[Event, ...]) -> int:
    return sum(event.requested for event in events if not event.freed)


def events_at(step: Step, spec: Spec, recorded: RecordedStep, target: int) -> tuple[Event, ...]:
    """Returns the events of a compiled step as they would be at another batch size, by compiling it for that.

    A compiled step asks for one buffer for all its temporaries and for its results. How XLA packs the former is no
    line in the batch, so it is asked; the batch itself is the only other thing that grows.
    """
    asked = [i for i, e in enumerate(recorded.events) if not e.freed and e.op.startswith(_COMPILED)]
    asked.sort(key=lambda index: -recorded.events[index].requested)
    sizes = dict(zip(asked, _assigned(step, spec, target), strict=False))
    inputs = {size * recorded.batch for size in bytes_per_sample(spec)}
    events = []
    for index, event in enumerate(recorded.events):
        size = sizes.get(index, event.requested)
        if not event.freed and not event.op and event.requested in inputs:
            size = event.requested // recorded.batch * target
        events.append(event._replace(requested=size))
    return tuple(events)


def read_ir(step: Step, spec: Spec, batch: int, stage: str, device: str | None = None) -> bytes:
    """Returns what XLA makes of a step at a batch size, without running it.

    Args:
        stage: How far XLA is to go, as `tf.function.experimental_get_compiler_ir` names it.
        device: What to compile for; TensorFlow's first choice unless told.
    """
    import tensorflow as tf

    trace = step.trace(spec.tensor_specs(batch))
    assert trace is not None, "a step that runs eagerly is not compiled"
    arguments, keywords = trace.structured_input_signature
    shapes = tf.nest.flatten((arguments, keywords))

    # TensorFlow takes shapes instead of tensors only where each is an argument of its own.
    def flat(*tensors: Any) -> Any:
        args, kwargs = tf.nest.pack_sequence_as((arguments, keywords), tensors)
        return trace(*args, **kwargs)

    function = tf.function(flat, jit_compile=True, autograph=False)
    text: bytes = function.experimental_get_compiler_ir(*shapes)(stage=stage, device_name=device)
    return text


def _assigned(step: Step, spec: Spec, batch: int) -> list[int]:
    """Bytes of what XLA's code allocates when it is run, the largest first."""
    module = read_hlo(read_ir(step, spec, batch, "optimized_hlo_proto_serialized"))
    return sorted(
        (
            allocation.size
            for allocation in module.buffer_assignment.buffer_allocations
            if not (
                allocation.is_entry_computation_parameter
                or allocation.is_constant
                or allocation.is_thread_local
            )
        ),
        reverse=True,
    )
