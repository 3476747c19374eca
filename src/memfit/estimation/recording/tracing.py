"""Tracing the step that is recorded: for which batch sizes, and what the traces tell."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from memfit.compat.keras_layers import all_layers
from memfit.compat.tf_runtime import optimise_once
from memfit.estimation.recording.specs import Spec, TensorSpecs
from memfit.estimation.recording.step import Step, Traced

# A step of more layers takes too long to trace for each batch size, and is traced once for all.
_MANY_LAYERS = 120
_LOOPS = frozenset({"While", "StatelessWhile"})
# These unfold their input into a buffer as large as the processor's cache, but only where that is at most 25 times
# what they read (conv_grad_ops_3d.cc: kMaxTempAllocationOverhead): from some batch on they take hundreds of MiB.
_WORKSPACE_BY_BATCH = frozenset({"Conv3DBackpropFilterV2", "Conv3DBackpropInputV2"})

Inputs = Mapping[str, tuple[str, ...]]


class Traces(NamedTuple):
    """How a step is traced.

    Attributes:
        batches: The batch sizes that may be recorded, the smallest first.
        each: Whether each of them has a trace of its own, which knows its size.
        loops: Whether ops run again and again, as in a loop over time.
        only_itself: Whether no smaller batch shows what the one asked about takes.
        first: The trace that there is: for all sizes, or for the smallest; None where the step runs eagerly.
    """

    batches: tuple[int, ...]
    each: bool
    loops: bool
    first: Traced | None
    only_itself: bool = False

    def specs(self, spec: Spec, batch: int) -> TensorSpecs:
        """Returns the specs that the step was traced with for a batch size."""
        return spec.tensor_specs(batch if self.each else None)


def trace_first(step: Step, model: Any, spec: Spec, batches: tuple[int, ...]) -> Traces:
    """Traces a step once, and decides how often it is to be traced.

    TensorFlow makes other ops of a step whose batch size it knows, as it does in `train_on_batch` and not in `fit`,
    and runs them in another order. A step that is traced for each batch size is so here, too, where that is quick.
    """
    if model.run_eagerly:
        return Traces(batches, each=False, loops=False, first=None)
    if model.jit_compile:
        # What XLA asks for at the batch in question it says itself.
        largest = batches[-1:]
        return Traces(largest, each=True, loops=False, first=step.trace(spec.tensor_specs(largest[0])))
    over_time = _runs_over_time(model)
    many = not over_time and len(all_layers(model)) > _MANY_LAYERS
    if len(batches) > 1 and (step.any_batch or many):
        trace = step.trace(spec.tensor_specs(None))
        loops = over_time or _has(trace, _LOOPS)
        # A loop keeps more where it does not know the batch: 72 instead of 66 MiB for a bidirectional LSTM.
        if step.any_batch or not loops:
            optimise_once()
            only_itself = _has(trace, _WORKSPACE_BY_BATCH)
            return Traces(batches, each=False, loops=loops, first=trace, only_itself=only_itself)
    trace = step.trace(spec.tensor_specs(batches[0]))
    only_itself, loops = _has(trace, _WORKSPACE_BY_BATCH), over_time or _has(trace, _LOOPS)
    return Traces(batches, each=True, loops=loops, first=trace, only_itself=only_itself)


def inputs_of(trace: Traced) -> Inputs:
    """Returns what every op of a trace waits for, by name, before TensorFlow optimises it: most names stay."""
    return {
        node.name: tuple(dict.fromkeys(name.lstrip("^").partition(":")[0] for name in node.input))
        for node in trace.graph.as_graph_def().node
    }


def _runs_over_time(model: Any) -> bool:
    import keras

    return any(
        isinstance(layer, keras.layers.RNN | keras.layers.Bidirectional) for layer in all_layers(model)
    )


def _has(trace: Traced, types: frozenset[str]) -> bool:
    return any(op.type in types for op in trace.graph.get_operations())
