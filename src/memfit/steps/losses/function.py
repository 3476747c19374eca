"""A function that returns a loss, as plans, recordings and steps see it: like a model, with less to it."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from memfit.compat.keras_layers import layers_called
from memfit.compat.tf_graphs import Graph
from memfit.errors import InvalidInput
from memfit.steps.losses.call import Call
from memfit.steps.losses.weights import Weight
from memfit.steps.writes import WRITES, resources_of, writing

GATHER, SUM, MEAN = "gather", "sum", "mean"
# Ops that draw from a state inside of them: what they draw cannot be drawn again, nor in parts.
_UNREPEATABLE = {
    *("RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal", "RandomShuffle"),
    "Multinomial",
}
# What Keras names the state of a seed generator.
_SEED = "seed_generator_state"


@dataclass
class Seen:
    """What tracing a loss function has shown of it.

    Attributes:
        layers: The Keras layers that it calls.
        changing: TensorFlow's variables that it may change: statistics, seeds, metrics.
        others: All further variables that it reads, such as those of a GAN's other network.
        dtype: That of its loss; None before it was traced.
        samples: How many there were, where the trace knew it.
        outputs: What it returns beside the loss, as tensor specs, flat.
        structure: The same as it is nested; None where it returns the loss alone.
        ops: The names of its ops.
        draws: Whether it draws random numbers that cannot be drawn again.
        half: Whether it computes in 16 bits.
    """

    layers: list[Any] = field(default_factory=list)
    changing: list[Any] = field(default_factory=list)
    others: list[Weight] = field(default_factory=list)
    dtype: Any = None
    samples: int | None = None
    outputs: list[Any] = field(default_factory=list)
    structure: Any = None
    ops: list[str] = field(default_factory=list)
    draws: bool = False
    half: bool = False


class LossFunction:
    """A function of tensors that returns a loss, the variables to differentiate it by, and how it is called.

    It has what a recording and a plan ask of a compiled model: variables, layers, and how its step is compiled.

    Args:
        function: Returns a scalar loss, or a tuple of it and anything else.
        weights: What to differentiate by.
        call: How it is called.
        outputs: What becomes of further outputs of parts of a batch, by their place: "gather", "sum" or "mean";
            None to gather what has samples, and to add up or average the rest as the loss.
        jit_compile: Whether XLA compiles its step.
    """

    compiled = built = True
    run_eagerly = False
    optimizer = None
    metrics_variables: tuple[Any, ...] = ()

    def __init__(
        self,
        function: Callable[..., Any],
        weights: Sequence[Weight],
        call: Call,
        *,
        outputs: Any = None,
        jit_compile: bool = False,
    ) -> None:
        self._function, self.call, self._wanted = function, call, outputs
        self.trainable_variables = list(weights)
        self.jit_compile = jit_compile
        self.code_module = getattr(function, "__module__", None)
        self.name = getattr(function, "__name__", type(function).__name__)
        self.sums = False  # whether parts of a batch add up to its loss; otherwise their mean does
        self.seen = Seen()

    # What a recording asks of a model.

    @property
    def layers(self) -> list[Any]:
        """The Keras layers that it was seen to call."""
        return self.seen.layers

    @property
    def variables(self) -> list[Weight]:
        """All variables that it was seen to use."""
        return [*self.trainable_variables, *self.seen.others]

    weights = variables

    # What a step asks.

    @property
    def values(self) -> list[Any]:
        """TensorFlow's variables to differentiate by."""
        return [weight.value for weight in self.trainable_variables]

    @property
    def seed_states(self) -> list[Any]:
        """The states of the Keras seed generators that it draws from."""
        return [variable for variable in self.seen.changing if _SEED in variable.name]

    def compute(self, tensors: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Calls the function; returns the loss, and what else it returns, flat.

        Raises:
            InvalidInput: If it does not return a scalar.
        """
        args, kwargs = self.call.pack(tensors)
        result = self._function(*args, **kwargs)
        loss, rest = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
        if isinstance(loss, float) or hasattr(loss, "value"):
            loss = tf.convert_to_tensor(loss)
        is_tensor = isinstance(loss, tf.Tensor)
        if not is_tensor or loss.shape.rank != 0 or not loss.dtype.is_floating:
            raise InvalidInput(
                "A function under memfit.gradients returns a scalar loss, or a tuple of it and other outputs",
                received=f"a {loss.dtype.name} of shape {loss.shape}" if is_tensor else type(loss),
                remedy="Return the mean of the samples' losses, such as tf.reduce_mean(...)",
            )
        self.seen.structure = None if rest is None else tf.nest.map_structure(lambda leaf: None, rest)
        return loss, [] if rest is None else [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(rest)]

    def convert(self) -> bool:
        """Lets AutoGraph rewrite the function's `if` and `for` over tensors; returns whether it did so now."""
        if isinstance(self._function, _Converted):
            return False
        self._function = _Converted(self._function)
        return True

    def pack_result(self, loss: Any, outputs: Sequence[Any]) -> Any:
        """Returns what the function itself would return."""
        if self.seen.structure is None:
            return loss
        return loss, tf.nest.pack_sequence_as(self.seen.structure, list(outputs))

    def ways_to_join(self) -> list[str]:
        """Says for each further output what becomes of it when a batch is computed in parts."""
        specs = self.seen.outputs
        if isinstance(self._wanted, str) or self._wanted is None:
            wanted: list[Any] = [self._wanted] * len(specs)
        else:
            wanted = tf.nest.flatten(self._wanted)
        if len(wanted) != len(specs) or not set(wanted) <= {GATHER, SUM, MEAN, None}:
            raise InvalidInput(
                '`outputs` is "gather", "sum" or "mean", or a dict with one of them for each further output',
                received=self._wanted,
            )
        return [self._join(spec) if way is None else way for spec, way in zip(specs, wanted, strict=True)]

    def _join(self, spec: Any) -> str:
        if spec.shape.rank and spec.shape[0] in (None, self.seen.samples):
            return GATHER
        return MEAN if spec.dtype.is_floating and not self.sums else SUM

    # What tracing shows.

    def look(self, tensors: Sequence[Any]) -> None:
        """Traces a plain call of it, once, to see what it does.

        Args:
            tensors: Tensors, or their specs.
        """
        if self.seen.dtype is not None:
            return
        specs = [
            tf.TensorSpec(tensor.shape, tensor.dtype) if tf.is_tensor(tensor) else tensor
            for tensor in tensors
        ]
        watch = tf.function(lambda *args: self.watch(args)[0], autograph=False)
        self.examine(run_outside(lambda: watch.get_concrete_function(*specs)).graph)

    def watch(self, tensors: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Computes it as `compute` does, in the graph that is traced, for `examine` to see what it does.

        Raises:
            InvalidInput: If it returns no scalar.
        """
        if tf.executing_eagerly():
            return self.compute(tensors)
        graph = tf.compat.v1.get_default_graph()
        begin = len(graph.get_operations())
        with layers_called() as layers:
            loss, outputs = self.compute(tensors)
        self.seen.dtype = loss.dtype
        self.seen.samples = self.call.count_samples(tensors)
        self.seen.outputs = [tf.TensorSpec(output.shape, output.dtype) for output in outputs]
        self.seen.ops = [op.name for op in graph.get_operations()[begin:]]
        self.seen.layers = layers
        return loss, outputs

    def examine(self, graph: Graph) -> None:
        """Notes what a call that was watched does in its graph, once that is complete.

        Raises:
            InvalidInput: If it changes variables that are trained.
        """
        names = set(self.seen.ops)
        ops = [op for op in graph.get_operations() if op.name in names]
        self.seen.draws = any(op.type in _UNREPEATABLE for op in ops)
        self.seen.half = any(tensor.dtype in (tf.float16, tf.bfloat16) for op in ops for tensor in op.outputs)
        known = {id(variable.handle): variable for variable in graph.variables}
        outer = {inner.name: handle for handle, inner in graph.captures}
        own = {id(weight.value.handle) for weight in self.trainable_variables}
        changing: dict[int, Any] = {}
        for op in writing(ops):
            for key in (id(outer[name]) for name in resources_of(op) if name in outer):
                variable = known.get(key)  # None for what is no variable, such as a table
                if variable is None:
                    continue
                if not variable.trainable and key not in own:
                    changing[key] = variable
                elif op.type in WRITES:
                    raise InvalidInput(
                        "A function under memfit.gradients may read trainable variables, but not change them",
                        received=f"{self.name} changes {variable.name}",
                        remedy="Apply the gradients after the call: optimizer.apply(grads, variables)",
                    )
        self.seen.changing = list(changing.values())
        self.seen.others = [
            Weight(variable.name.partition(":")[0], variable)
            for key, variable in known.items()
            if key not in own
        ]


def run_outside(function: Callable[[], Any]) -> Any:
    """Runs something outside of the graph that this thread may be tracing: another thread has none.

    `tf.init_scope` would stop the tapes of a function that differentiates inside, as WGAN-GP's does.
    """
    if tf.executing_eagerly():
        return function()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


class _Converted:
    """A function with its `if` and `for` over tensors rewritten by AutoGraph, when it is first called."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._converted: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._converted is None:
            self._converted = tf.autograph.to_graph(self._function)
        return self._converted(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {"_function": self._function, "_converted": None}
