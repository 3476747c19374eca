"""Finding the choices worth having: the least recomputation for less and less memory."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from memfit.compat.keras_globals import names_from_the_first
from memfit.sizes import Size
from memfit.steps.rematerialisation.choosing.alive import Choice, Ledger
from memfit.steps.rematerialisation.choosing.model_trace import ModelTrace, trace_call, trace_model
from memfit.steps.rematerialisation.choosing.refine import refine
from memfit.steps.rematerialisation.trace import TensorId, Trace
from memfit.steps.segments import Segments

# Fractions of stock's activation memory that choices are looked for at.
_RATIOS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.45, 0.4, 0.35, 0.3, 0.27, 0.24, 0.225, 0.21, 0.195, 0.18, 0.15, 0.12)
# A tensor below this share of all that the backward pass reads is always kept: means, variances, scales.
_SMALL = 1 / 2000
# Recomputation above this part of a step (nearly two forward passes) is not looked for: micro-batches cost less.
_DEAREST = 0.6


def find_choices(
    model: Any, batch_size: int, specs: Any = None, compiled: bool | None = None
) -> tuple[Segments, ...]:
    """Lists the choices worth having, from the fastest to the one with the least memory.

    Args:
        model: A built Keras model.
        batch_size: The batch the figures are for.
        specs: Tensor specs of the model's inputs; needed only for subclassed models.
        compiled: Whether XLA compiles the step; None for what the model was compiled with.

    Returns:
        Choices of which none is both smaller and faster than another; empty if nothing can be saved.

    Raises:
        InvalidInput: If the shapes of the model's inputs are not known.
    """
    if compiled is None:
        compiled = bool(getattr(model, "jit_compile", False))
    return find_in(trace_model(model, batch_size, specs, compiled=compiled), batch_size)


def find_choices_of_loss(
    compute: Callable[..., Any],
    weights: Sequence[Any],
    specs: tuple[Any, ...],
    batch_size: int,
    *,
    compiled: bool,
) -> tuple[Segments, ...]:
    """Lists the choices for a loss function, as `find_choices` does for a model.

    Args:
        compute: Takes tensors and returns the loss, a scalar.
        weights: TensorFlow's variables to differentiate by.
        specs: Tensor specs of its arguments.
        batch_size: The batch the figures are for.
        compiled: Whether XLA compiles the step.
    """

    def call(*tensors: Any) -> list[Any]:
        with names_from_the_first():
            return [compute(*tensors)]

    traces = trace_call(call, lambda: weights, specs, batch_size, compiled=compiled)
    return find_in(traces, batch_size)


def find_in(traces: ModelTrace, batch_size: int) -> tuple[Segments, ...]:
    """Lists the choices in traces, from the fastest to the one with the least memory."""
    stock_bytes = Ledger(traces.stock).count(_keep_everything(traces.stock)).peak
    search = _Search(traces.rewritten, stock_bytes, batch_size)
    best: list[Segments] = []
    for choice in sorted(search.run(), key=lambda choice: (choice.recomputed, choice.activation_bytes)):
        if choice.activation_bytes < min((other.activation_bytes for other in best), default=stock_bytes):
            best.append(choice)
    return tuple(best)


def _keep_everything(trace: Trace) -> Choice:
    """The choice of a step that computes nothing again."""
    tensors = ((index, number) for index, op in enumerate(trace.forward) for number in range(len(op.sizes)))
    return Choice(frozenset(tensors), ())


def split_by_size(trace: Trace) -> tuple[int, frozenset[TensorId], frozenset[TensorId]]:
    """Returns up to how many bytes a tensor is small, and the forward tensors to decide about.

    Returns:
        The bytes; the small tensors, which are always kept; the large ones that the backward pass reads.
    """
    read = {trace.root(tensor) for index in trace.backward for tensor in trace.list_needs(index)}
    small_bytes = int(_SMALL * sum(map(trace.size, read)))
    small = frozenset(
        (index, number)
        for index, op in enumerate(trace.forward)
        for number, size in enumerate(op.sizes)
        if size <= small_bytes and not op.is_alias
    )
    large = (tensor for tensor in read - small if tensor[0] >= 0 and trace.ops[tensor[0]].recomputable)
    return small_bytes, small, frozenset(large)


class _Search:
    """The search for choices in one trace."""

    def __init__(self, trace: Trace, stock_bytes: int, batch_size: int) -> None:
        self._trace = trace
        self._stock_bytes = stock_bytes
        self._batch_size = batch_size
        self._small_bytes, self._small, self._large = split_by_size(trace)
        self._ledger = Ledger(trace)
        self._step_cost = sum(op.cost for op in trace.ops)

    def run(self) -> Iterator[Segments]:
        """Yields choices of less and less memory, each refined from the one before."""
        choice = Choice(self._large, ())
        quick = Ledger(self._trace, self._small_bytes)
        # Small tensors, which the quick ledger leaves out.
        left_out = self._ledger.count(_keep_everything(self._trace)).peak - quick.count(choice).peak
        for ratio in _RATIOS if self._large else ():
            refined = refine(quick, choice, ratio * self._stock_bytes - left_out)
            if refined is None:
                return
            choice = refined
            segments = self._describe(choice)
            yield segments
            if segments.recomputed > _DEAREST:
                return

    def _describe(self, choice: Choice) -> Segments:
        """Turns a choice into segments, with names and figures."""
        starts = tuple(sorted({self._skip_constants(start) for start in choice.starts}))
        kept = choice.kept | self._small
        usage = self._ledger.count(Choice(kept, starts))
        return Segments(
            batch_size=self._batch_size,
            starts=tuple(self._trace.ops[start].name for start in starts),
            kept=tuple(self._trace.name(tensor) for tensor in sorted(self._list_read(kept, usage.rerun))),
            stock_bytes=Size(self._stock_bytes),
            activation_bytes=Size(usage.peak),
            recomputed=usage.cost / self._step_cost,
        )

    def _list_read(self, kept: frozenset[TensorId], rerun: list[int]) -> set[TensorId]:
        """Lists the kept tensors that the backward pass reads, and would compute again if they were not named."""
        readers = [*self._trace.backward, *set(rerun)]
        # What a reshape shows is read under another name than it is kept under.
        read = {self._trace.root(tensor) for index in readers for tensor in self._trace.ops[index].inputs}
        return {tensor for tensor in kept & read if self._trace.ops[tensor[0]].recomputable}

    def _skip_constants(self, index: int) -> int:
        """Skips constants and captured variables, which a graph has only once, wherever they were first read."""
        while self._trace.ops[index].type in ("Placeholder", "Const", "ReadVariableOp"):
            index += 1
        return index
