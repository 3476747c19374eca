"""The tapes of a step that someone else wrote: its gradients, with activations computed again.

A custom `train_step` calls `tape.gradient` once, or once for each of its networks. While such a step is traced,
`tf.GradientTape.gradient` is replaced: it takes the ops since the last gradient, builds the same gradients, and
rewrites them. It sees ops, not layers, so that it does not matter what the step calls.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import tensorflow as tf

from memfit.compat.tf_graphs import Graph, Op, compiles_with_xla
from memfit.sizes import Size
from memfit.steps.rematerialisation.call_names import steady_names
from memfit.steps.rematerialisation.choosing.find import find_in
from memfit.steps.rematerialisation.choosing.model_trace import read_traces
from memfit.steps.rematerialisation.model_call import build_gradients
from memfit.steps.rematerialisation.rewrite.backward import check_known
from memfit.steps.segments import Segments

Differentiate = Callable[[Sequence[Op], Any, Sequence[Any]], list[Any]]


@contextmanager
def rematerialised_tapes(model: Any, segments: Segments) -> Iterator[None]:
    """Lets the tapes of a model's step that is traced meanwhile keep no more than segments say.

    Raises:
        InvalidInput: If the segments were chosen for another step.
    """
    known: set[str] = set()

    def differentiate(forward: Sequence[Op], target: Any, weights: Sequence[Any]) -> list[Any]:
        names = {op.name for op in forward}
        known.update(names)
        kept = tuple(tensor for tensor in segments.kept if tensor.rpartition(":")[0] in names)
        starts = tuple(start for start in segments.starts if start in names)
        own = replace(segments, kept=kept, starts=starts)
        with tf.name_scope("gradient_tape"):
            one = tf.ones_like(target)
            return build_gradients(forward, "", own, [(target, one)], [], weights, [target])

    with _replaced_tapes(differentiate), steady_names(model):
        yield
    check_known(known, segments)


def find_choices_of_step(model: Any, spec: Any, batch_size: int) -> tuple[Segments, ...]:
    """Lists the choices for a model's own `train_step`, from the fastest to the one with the least memory.

    Each of its gradients has choices of its own; the step's are those in which all stay below a number of bytes.

    Args:
        spec: Tensor specs of the batch.
        batch_size: The batch the figures are for.
    """
    by_tape: list[tuple[Segments, ...]] = []

    def differentiate(forward: Sequence[Op], target: Any, weights: Sequence[Any]) -> list[Any]:
        traces, gradients = read_traces(forward, "", [target], weights, batch_size, compiled=False)
        by_tape.append(find_in(traces, batch_size))
        return gradients

    def trace(data: Any) -> None:
        by_tape.clear()  # a step that makes variables is traced twice
        with _replaced_tapes(differentiate), steady_names(model):
            model.train_step(data)

    tf.function(trace, autograph=False).get_concrete_function(spec)
    return _combine(by_tape)


def _combine(by_tape: Sequence[tuple[Segments, ...]]) -> tuple[Segments, ...]:
    """Combines the choices of several gradients of a step: those that stay below each of their sizes."""
    known = [choices for choices in by_tape if choices]
    stock = max((choices[0].stock_bytes for choices in known), default=Size(0))
    combined: list[Segments] = []
    for most in sorted({choice.activation_bytes for choices in known for choice in choices}, reverse=True):
        chosen = [
            next((choice for choice in choices if choice.activation_bytes <= most), choices[-1])
            for choices in known
            if choices[0].stock_bytes > most
        ]
        largest = max([choice.activation_bytes for choice in chosen], default=most)
        if not chosen or largest >= min([other.activation_bytes for other in combined], default=stock):
            continue
        combined.append(
            replace(
                chosen[0],
                starts=tuple(start for choice in chosen for start in choice.starts),
                kept=tuple(tensor for choice in chosen for tensor in choice.kept),
                stock_bytes=stock,
                activation_bytes=largest,
                recomputed=sum(choice.recomputed for choice in chosen) / len(by_tape),
            )
        )
    return tuple(combined)


@contextmanager
def _replaced_tapes(differentiate: Differentiate) -> Iterator[None]:
    """Lets the outermost tapes of the graph that is traced ask for their gradients elsewhere."""
    graph = tf.compat.v1.get_default_graph()
    names = ("__enter__", "__exit__", "gradient", "watch", "stop_recording", "reset")
    own = {name: getattr(tf.GradientTape, name) for name in names}
    depth, done = 0, len(graph.get_operations())
    tapes: list[Any] = []  # held, so that no other has the id of one
    recorded: dict[int, list[int]] = {}  # by tape: how many ops there were when it began, and when it ended
    unusual: set[int] = set()  # tapes that do not record all that is computed while they are on

    def enter(tape: Any) -> Any:
        nonlocal depth
        depth += 1
        tapes.append(tape)
        recorded.setdefault(id(tape), [len(graph.get_operations())])
        return own["__enter__"](tape)

    def leave(tape: Any, *args: Any) -> Any:
        nonlocal depth
        depth -= 1
        recorded[id(tape)].append(len(graph.get_operations()))
        return own["__exit__"](tape, *args)

    def gradient(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal done
        plain = depth or args or kwargs or tf.compat.v1.get_default_graph() is not graph
        weights = [getattr(source, "value", source) for source in tf.nest.flatten(sources)]
        plain = plain or not isinstance(target, tf.Tensor) or not target.dtype.is_floating
        if plain or not all(isinstance(weight, tf.Variable) for weight in weights):
            return own["gradient"](tape, target, sources, *args, **kwargs)
        span = recorded.get(id(tape), [])
        ops = graph.get_operations()
        forward = ops[max(done, span[0]) : span[1]] if len(span) == 2 else []
        # What was computed before a tape began is a number to it, also where it was computed from the weights.
        if (
            id(tape) in unusual
            or target.op not in set(forward)
            or _reads_weights(target, set(ops[: span[0]]), weights, graph)
            or compiles_with_xla(graph)
        ):
            return own["gradient"](tape, target, sources)
        unusual.add(id(tape))  # a persistent tape's next gradient reads the same activations
        gradients = differentiate(forward, target, weights)
        done = len(graph.get_operations())
        return tf.nest.pack_sequence_as(sources, gradients)

    def noting(name: str) -> Any:
        def call(tape: Any, *args: Any, **kwargs: Any) -> Any:
            unusual.add(id(tape))
            return own[name](tape, *args, **kwargs)

        return call

    replaced = {"__enter__": enter, "__exit__": leave, "gradient": gradient}
    replaced |= {name: noting(name) for name in ("watch", "stop_recording", "reset")}
    for name, function in replaced.items():
        setattr(tf.GradientTape, name, function)
    try:
        yield
    finally:
        for name, function in own.items():
            setattr(tf.GradientTape, name, function)


def _reads_weights(target: Any, before: set[Op], weights: Sequence[Any], graph: Graph) -> bool:
    """Whether a target depends on weights by way of ops that were there before its tape began."""
    captured = {id(outer): inner.name for outer, inner in graph.captures}
    handles = {captured.get(id(weight.handle)) for weight in weights}
    seen: set[Op] = set()
    left = [(target.op, target.op in before)]
    while left:
        op, early = left.pop()
        if op in seen:
            continue
        seen.add(op)
        for tensor in op.inputs:
            if tensor.name in handles:
                if early:
                    return True
            else:
                left.append((tensor.op, tensor.op in before))
    return False
