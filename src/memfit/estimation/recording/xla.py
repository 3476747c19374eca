"""What a step that XLA compiles asks for at a batch size that is never run: XLA's own buffer assignment says it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from memfit.compat.tf_profiles import read_hlo
from memfit.estimation.recording.specs import Batch, Spec, mapped
from memfit.estimation.recording.trace import Event

# XLA asks as the function it was made of, whose name TensorFlow begins like this.
_COMPILED = "__inference_"


@dataclass(frozen=True)
class Compiled:
    """What XLA said of a step that was not run.

    Attributes:
        batch: The batch size it was compiled for.
        events: The step's events there.
        doubt: How far off, as a part of the whole, the same way was at the batch that was run; 0 where XLA answered
            for the batch asked about.
        failure: Why it did not answer for that, or "".
    """

    batch: int
    events: tuple[Event, ...]
    doubt: float = 0.0
    failure: str = ""


def compiled_for(
    step: Callable[[Batch], Any], spec: Spec, recorded: tuple[Event, ...], batch: int, target: int | str
) -> Compiled:
    """Compiles a step for the batch size asked about, or, where that cannot be, for half of the recorded one.

    The recorded batch and its half make a line. What that is worth is seen at the recorded batch itself, which the
    line of its quarter and its half should meet.

    Args:
        step: The step, without XLA.
        spec: Makes the batches.
        recorded: The step's events at `batch`.
        batch: The batch size that was recorded.
        target: The batch size asked about; why not, where it is known not to compile.
    """
    if isinstance(target, str):
        failure = target
    else:
        try:
            return Compiled(target, events_at(step, spec, recorded, batch, target))
        except Exception as error:  # whatever XLA finds wrong with a size it never saw
            failure = f"({type(error).__name__})"
    half, quarter = max(1, batch // 2), max(1, batch // 4)
    events = events_at(step, spec, recorded, batch, half)
    true, middle = _asked(recorded), _asked(events)
    doubt = 0.0
    if quarter < half:
        slope = (middle - _asked(events_at(step, spec, recorded, batch, quarter))) / (half - quarter)
        doubt = abs(middle + slope * (batch - half) - true) / true
    return Compiled(half, events, doubt, failure)


def _asked(events: tuple[Event, ...]) -> int:
    return sum(event.requested for event in events if not event.freed)


def events_at(
    step: Callable[[Batch], Any], spec: Spec, recorded: tuple[Event, ...], batch: int, target: int
) -> tuple[Event, ...]:
    """Returns the events of a compiled step as they would be at another batch size, by compiling it for that.

    A compiled step asks for one buffer for all its temporaries and for its results. How XLA packs the former is no
    line in the batch, so it is asked; the batch itself is the only other thing that grows.

    Args:
        step: The step, without XLA.
        spec: Makes the batches.
        recorded: The step's events at `batch`.
        batch: The batch size that was recorded.
        target: The batch size to compile for.
    """
    asked = [i for i, e in enumerate(recorded) if not e.freed and e.op.startswith(_COMPILED)]
    asked.sort(key=lambda index: -recorded[index].requested)
    sizes = dict(zip(asked, _assigned(step, spec, target), strict=False))
    inputs = {size * batch for size in bytes_per_sample(spec)}
    found = []
    for index, event in enumerate(recorded):
        size = sizes.get(index, event.requested)
        if not event.freed and not event.op and event.requested in inputs:
            size = event.requested // batch * target
        found.append(event._replace(requested=size))
    return tuple(found)


def _assigned(step: Callable[[Batch], Any], spec: Spec, batch: int) -> list[int]:
    """Bytes of what XLA's code allocates when it is run, the largest first."""
    import tensorflow as tf

    leaves: list[Any] = []

    def place_of(leaf: Any) -> int:
        leaves.append(leaf)
        return len(leaves) - 1

    places = mapped(place_of, spec.structure)
    # TensorFlow compiles for shapes alone only where the arguments are not nested.
    flat = tf.function(
        tf.autograph.experimental.do_not_convert(
            lambda *tensors: step(mapped(lambda place: tensors[place], places))
        ),
        jit_compile=True,
    )
    shapes = [tf.TensorSpec((batch, *leaf.shape), leaf.dtype) for leaf in leaves]
    module = read_hlo(flat.experimental_get_compiler_ir(*shapes)(stage="optimized_hlo_proto_serialized"))
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


def bytes_per_sample(spec: Spec) -> list[int]:
    """Returns the bytes of each tensor of a batch, per sample."""
    import tensorflow as tf

    found: list[int] = []

    def add(leaf: Any) -> None:
        elements = 1
        for size in leaf.shape:
            elements *= size
        found.append(elements * tf.as_dtype(leaf.dtype).size)

    mapped(add, spec.structure)
    return found
