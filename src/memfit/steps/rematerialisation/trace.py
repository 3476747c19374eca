"""Reading a model's forward and backward pass from the graph TensorFlow really builds for them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from memfit.compat.keras_layers import added_losses, forget_losses
from memfit.compat.tf_graphs import forward_op_of, gradients
from memfit.steps.rematerialisation.concats import without_concats
from memfit.steps.rematerialisation.costs import cost
from memfit.steps.rematerialisation.sizes import ALIASES, Sizes, sums_nothing
from memfit.steps.rematerialisation.tiles import without_tiles

Tensor = tuple[int, int]  # the op's index in the trace, and which of its outputs

# These read a tensor's shape, not its values: they run at once and keep nothing alive.
_SHAPE_READERS = {"Shape", "ShapeN", "Size", "Rank"}
# Backward ops that make little of a large tensor.
_SUMS = {"Sum", "BiasAddGrad", "DepthwiseConv2dNativeBackpropFilter"}


@dataclass(frozen=True)
class Op:
    """One op of the trace: what it reads, what it makes, and what running it again would take."""

    name: str
    type: str
    inputs: tuple[Tensor, ...]
    sizes: tuple[int, ...]
    cost: float
    recomputable: bool
    level: int  # for a backward op the forward op it belongs to, else its own index

    @property
    def is_alias(self) -> bool:
        return self.type in ALIASES

    @property
    def reads_values(self) -> bool:
        return self.type not in _SHAPE_READERS


@dataclass(frozen=True)
class Trace:
    """Forward ops, then backward ops, each in an order in which they can run.

    Attributes:
        ops: All of them; the backward ops as a rematerialised step has them.
        forward_count: How many are forward ops.
        stock: The same with the backward ops as TensorFlow makes them; None where nobody asked.
        in_place: Whether ops write over what they are the last to read. XLA's seldom do: a normalisation's gradient
            is there beside its input and the gradient that came in.
    """

    ops: tuple[Op, ...]
    forward_count: int
    stock: "Trace | None" = None
    in_place: bool = True

    @property
    def forward(self) -> tuple[Op, ...]:
        return self.ops[: self.forward_count]

    @property
    def backward(self) -> range:
        return range(self.forward_count, len(self.ops))

    def tensor_name(self, tensor: Tensor) -> str:
        return f"{self.ops[tensor[0]].name}:{tensor[1]}"


def trace(model: Any, batch_size: int, inputs: Any = None, *, by_branch: bool = False) -> Trace:
    """Traces one training call of a model and its gradients, without running either.

    Args:
        model: A built Keras model.
        batch_size: The batch its shapes are taken at.
        inputs: Tensor specs (with the batch axis) in the structure that the model is called with; needed only
            for models that do not know their inputs (subclassed ones).
        by_branch: Whether the backward pass goes through one branch after the other.
    """
    import tensorflow as tf

    specs = input_specs(model, batch_size) if inputs is None else inputs
    found: list[Trace] = []

    def step(x: Any) -> None:
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        with tf.name_scope("rematerialised") as scope:
            y = model(x, training=True)
        outputs = differentiable([*tf.nest.flatten(y), *(loss for _, _, loss in added_losses(model))])
        forward = graph.get_operations()[before:]
        grad_ys = [tf.ones_like(output) for output in outputs]
        after = len(graph.get_operations())
        results = gradients(outputs, grad_ys, trainable_values(model), graph)
        plain = in_order(forward, graph.get_operations()[after:], ops_of(results))
        stock = read(forward, plain, scope, batch_size)
        backward, results = without_concats(graph.get_operations()[after:], results)
        backward = without_tiles(backward)
        backward = in_order(forward, backward, ops_of(results), by_branch=by_branch)
        found.append(replace(read(forward, backward, scope, batch_size), stock=stock))

    tf.function(step, autograph=False).get_concrete_function(specs)
    forget_losses(model)
    return found[0]


def read(forward: Sequence[Any], backward: Sequence[Any], scope: str, batch_size: int) -> Trace:
    """Turns the ops of a graph into a trace.

    Args:
        forward: The forward ops.
        backward: The backward ops, in an order in which they can run.
        scope: The name scope that the names of forward ops are relative to.
        batch_size: What the sizes are for where the graph does not know the batch.
    """
    index = {op: place for place, op in enumerate([*forward, *backward])}
    sizes = Sizes(list(index), batch_size)
    levels = _levels(forward, backward)
    of_weights = _of_weights(forward)
    ops = [
        Op(
            name=op.name.removeprefix(scope),
            type="Identity" if sizes.hands_on(op) else op.type,
            inputs=tuple((index.get(tensor.op, -1), tensor.value_index) for tensor in op.inputs),
            sizes=tuple(map(sizes.bytes, op.outputs)),
            cost=cost(op),
            recomputable=place < len(forward) and op not in of_weights and _is_pure(op),
            level=levels[op],
        )
        for op, place in index.items()
    ]
    return Trace(tuple(ops), len(forward))


def in_order(
    forward: Sequence[Any], backward: Sequence[Any], wanted: Sequence[Any], *, by_branch: bool = False
) -> list[Any]:
    """Orders the backward ops that lead to wanted ops: against the forward order, weights' gradients first.

    A weight's gradient is often the last to read an activation. The gradient that flows on does not read it, so
    it comes after, when the activation is gone. So do sums: what reads the same tensor after them may overwrite it.
    Ops that lead nowhere are dead code, which nothing may wait for.

    Keras calls the layers of two branches by turns. By branch, each branch's gradient is done before the next one
    begins, so that only one of them has its gradients in memory.
    """
    useful = _leading_to(wanted, set(backward))
    levels = _levels(_branch_after_branch(forward) if by_branch else forward, backward)
    groups: dict[int, list[Any]] = {}
    readers: dict[Any, list[Any]] = {}
    for op in backward:
        if op in useful:
            groups.setdefault(levels[op], []).append(op)
            for tensor in op.inputs:
                readers.setdefault(tensor.op, []).append(op)
    order: list[Any] = []
    for level in sorted(groups, reverse=True):
        flowing: set[Any] = set()
        for op in reversed(groups[level]):
            if any(levels[reader] < level or reader in flowing for reader in readers.get(op, ())):
                flowing.add(op)
        ending = _leading_to([op for op in groups[level] if op not in flowing], set(groups[level]))
        order += [op for op in groups[level] if op in ending]
        order += _sums_first([op for op in groups[level] if op not in ending])
    return order


def _sums_first(ops: Sequence[Any]) -> list[Any]:
    """Orders ops so that those come first that add up large tensors, and what they need."""
    order: dict[Any, None] = {}
    for op in ops:
        if op.type in _SUMS and not sums_nothing(op):
            needed = _leading_to([op], set(ops))
            order |= dict.fromkeys(other for other in ops if other in needed)
    return list(order | dict.fromkeys(ops))


def _levels(forward: Sequence[Any], backward: Sequence[Any]) -> dict[Any, int]:
    """Says for each op which forward op it belongs to: a backward op to the earliest it follows from."""
    places = {op: place for place, op in enumerate(forward)}
    levels: dict[Any, int] = {}
    for op in backward:
        own = places.get(forward_op_of(op), len(forward))
        levels[op] = min([own, *(levels[tensor.op] for tensor in op.inputs if tensor.op in levels)])
    return {**places, **levels}


def _branch_after_branch(forward: Sequence[Any]) -> list[Any]:
    """Orders forward ops so that all that leads to one input of an op comes before what only the next one needs."""
    places = {op: place for place, op in enumerate(forward)}
    order: dict[Any, None] = {}
    waiting = list(forward)  # the last op and all that leads to it, then what is left
    while waiting:
        op = waiting[-1]
        missing = {tensor.op for tensor in op.inputs if tensor.op in places and tensor.op not in order}
        if op in order or not missing:
            order[waiting.pop()] = None
        else:
            waiting += sorted(missing, key=places.__getitem__, reverse=True)
    return list(order)


def _leading_to(wanted: Sequence[Any], possible: set[Any]) -> set[Any]:
    """Finds the ops among the possible ones that some wanted ops follow from, themselves included."""
    found: set[Any] = set()
    waiting = [op for op in wanted if op in possible]
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += [tensor.op for tensor in op.inputs if tensor.op in possible]
    return found


def ops_of(gradients: Sequence[Any]) -> list[Any]:
    """Lists the ops that make gradients: tensors, slices of tensors, or None."""
    import tensorflow as tf

    tensors = [
        tf.nest.flatten(gradient, expand_composites=True) for gradient in gradients if gradient is not None
    ]
    return [tensor.op for parts in tensors for tensor in parts]


def input_specs(model: Any, batch_size: int) -> Any:
    """Returns tensor specs of a model's inputs at a batch size, in the structure it is called with."""
    import tensorflow as tf

    from memfit.errors import InvalidInput

    try:
        inputs = model.input  # the structure, as `model.inputs` is flat
    except (AttributeError, ValueError):
        flat = getattr(model, "inputs", None)
        inputs = flat[0] if flat and len(flat) == 1 else None
    if inputs is None:
        raise InvalidInput(
            "The shapes of a subclassed model's inputs are not known from the model",
            received=type(model).__name__,
            remedy="Pass specs=, tensor specs with the batch axis in the structure the model is called with",
        )
    return tf.nest.map_structure(lambda x: tf.TensorSpec((batch_size, *x.shape[1:]), x.dtype), inputs)


def trainable_values(model: Any) -> list[Any]:
    """Returns the TensorFlow variables behind a model's trainable variables."""
    return [variable.value for variable in model.trainable_variables]


def differentiable(tensors: Sequence[Any]) -> list[Any]:
    return [tensor for tensor in tensors if tensor.dtype.is_floating or tensor.dtype.is_complex]


def _of_weights(forward: Sequence[Any]) -> set[Any]:
    """Finds the ops that follow from weights, constants and shapes alone, such as casts: they are no activations.

    Random numbers follow from their seeds alone, but they are as large as activations.
    """
    found: set[Any] = set()
    for op in forward:
        if op.type in ("ReadVariableOp", "Const", *_SHAPE_READERS) or (
            op.inputs
            and not op.type.startswith("Stateless")
            and all(tensor.op in found for tensor in op.inputs)
        ):
            found.add(op)
    return found


def _is_pure(op: Any) -> bool:
    """Says whether running the op once more gives the same and changes nothing."""
    if op.op_def.is_stateful or op.type in ("Placeholder", "Const"):
        return False
    return not any(attr.HasField("func") or attr.list.func for attr in op.node_def.attr.values())
