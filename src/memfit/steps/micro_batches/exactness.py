"""Trying, on a few samples, whether a model's training step gives the same in micro-batches.

Keras's own layers and losses do, and where they draw random numbers a micro-batch draws those of the whole batch.
Layers that mix samples, losses that are no means, code of the user's own, and random numbers that cannot be drawn
so are seen by computing them: the loss and the gradients of training, once for all samples, once in parts.

BatchNormalization normalises as in inference meanwhile: that micro-batches change it needs no trial.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from memfit.compat import keras_data, keras_layers, keras_training
from memfit.compat.keras_globals import shared_seed_generator
from memfit.compat.keras_layers import all_layers
from memfit.compat.tf_random import Draw, draws_replaced
from memfit.data.shapes import count_samples, leaves_of
from memfit.estimation.recording.sending import packed, unpacked
from memfit.estimation.recording_process import recording_process
from memfit.steps.micro_batches.batch import PartedBatch, PartResult
from memfit.steps.micro_batches.loss_shares import losses_of_part
from memfit.steps.micro_batches.samples import Part
from memfit.steps.micro_batches.sketches import COLUMNS, sketch
from memfit.steps.micro_batches.trial import (
    FEWER,
    SAMPLES,
    Difference,
    Outcome,
    find_difference,
    half_of_digits,
    part_size,
    put_back,
)
from memfit.steps.micro_batches.varying import choose_rows, mix_labels, tell_apart, vary_samples
from memfit.steps.writes import find_written

# What `+`, `-`, `*` and `/` between symbolic tensors make.
_ARITHMETIC = frozenset({"Add", "Subtract", "Multiply", "Divide", "TrueDivide", "Negative"})
_ADDS_UP = (
    "what its layers or `compute_loss` add to the loss is a sum over the samples, of which micro-batches would "
    "make a mean; add one number for each sample instead, and they are exact"
)


@dataclass(frozen=True)
class Verdict:
    """What came of a trial.

    Attributes:
        draws: Why micro-batches draw other random numbers than the whole batch, or None.
        differs: What else they compute otherwise, or None.
        adds_up: Why they would change the size of the gradients, or None: a loss is a sum over the samples.
        state: Which weight a pass through the model itself changes, once for every micro-batch, or None.
    """

    draws: str | None = None
    differs: str | None = None
    adds_up: str | None = None
    state: str | None = None


def has_code_of_its_own(model: keras.Model) -> bool:
    """Whether there is anything but Keras's own layers: functions, ops between layers, a user's classes.

    Arithmetic between layers, as the sum of a residual block, is as well known as a layer.
    """
    layers = all_layers(model)
    models = [layer for layer in layers if isinstance(layer, keras.Model)]
    between = [op for part in models for op in getattr(part, "operations", ())]
    return any(
        not (isinstance(op, keras.layers.Layer) or _is_arithmetic_of_samples(op))
        or isinstance(op, keras.layers.Lambda)
        or not type(op).__module__.startswith("keras.")
        for op in (*layers, *between)
    )


def _is_arithmetic_of_samples(op: Any) -> bool:
    """Whether an op computes each value from those at its place: of the same sample, where samples come first.

    A tensor of another rank would be taken along another axis, and an array with as many rows as a batch has
    samples would tell them apart: then the size of the batch is known.
    """
    if type(op).__name__ not in _ARITHMETIC:
        return False
    shapes = [tensor.shape for tensor in keras.tree.flatten([op.input, op.output])]
    return len({len(shape) for shape in shapes}) == 1 and all(shape[:1] == (None,) for shape in shapes)


def try_in_parts(model: keras.Model, data: Any) -> Verdict:
    """Computes some samples at once and in parts; nothing of the model changes.

    Where the device has no room for a few samples at once, they are computed on the host, in another process.

    Args:
        data: Samples as `fit` takes them, as many as there are, or a batch as Keras gives it to a step.
    """
    for count in (SAMPLES, FEWER):
        try:
            return _try(model, choose_samples(data, count))
        except tf.errors.ResourceExhaustedError:
            continue
        except Exception as error:  # whatever a user's code raises on synthetic samples
            return _untried(error)
    try:
        return _try_on_host(model, choose_samples(data, SAMPLES))
    except Exception as error:  # that, or the model cannot be sent
        return _untried(error)


def _untried(error: Exception) -> Verdict:
    return Verdict(differs=f"its loss could not be tried in micro-batches ({type(error).__name__})")


def _try_on_host(model: keras.Model, samples: Any) -> Verdict:
    """Tries a copy of a model in a process that has the host's memory."""
    values = [weight.numpy() for weight in model.weights]
    arrays = keras.tree.map_structure(lambda x: x.numpy() if isinstance(x, tf.Tensor) else x, samples)
    with recording_process() as process:
        return process.run(_try_packed, (packed(model, arrays, values),))


def _try_packed(payload: bytes) -> Verdict:
    """Tries the model of `_try_on_host`, whose weights were sent as their shapes alone."""
    model, (samples, values) = unpacked(payload)
    for weight, value in zip(model.weights, values, strict=True):
        weight.assign(value)
    return _try(model, samples)


def choose_samples(data: Any, count: int) -> Any:
    """Returns some samples from all over the data, as it is nested."""
    labels = leaves_of(data[1:]) if isinstance(data, tuple) else []
    rows = choose_rows(labels, count_samples(data), count)
    return keras.tree.map_structure(lambda leaf: _take(leaf, rows), data)


def _try(model: keras.Model, samples: Any) -> Verdict:
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(samples)
    count = count_samples(x)
    dataset = keras_data.array_dataset(x, y, sample_weight, count, shuffle=False, class_weight=None)
    few = next(iter(dataset))
    keras_training.build(model, *keras.utils.unpack_x_y_sample_weight(few), losses_alone=True)

    def find(step: _Step) -> Difference | None:
        return find_difference(
            lambda batch: (step.compute(batch, count), step.compute(batch, part_size(count))),
            list(_vary(few)),
            [weight.value for weight in model.trainable_variables],
            max(half_of_digits(layer.compute_dtype) for layer in all_layers(model)),
        )

    step = _Step(model)
    with _without_xla(model):
        difference = find(step)
        if difference is not None and not difference.in_outputs and find(_Step(model, added_up=True)) is None:
            return Verdict(adds_up=_ADDS_UP)
    state = f"{min(step.written)} changes with every micro-batch" if step.written else None
    draws = None
    if step.draws and model.jit_compile:
        draws = "other random numbers: XLA draws them in its own order"
    elif step.draws and model.run_eagerly:
        draws = "other random numbers: a step that runs eagerly does not say which dimension is the samples'"
    if difference is None or (draws is not None and not step.traced):
        return Verdict(draws, state=state)
    if difference.in_outputs and not has_code_of_its_own(model):
        return Verdict(draws or "other random numbers: they cannot be drawn per micro-batch", state=state)
    return Verdict(draws, difference.story, state=state)


class _Step:
    """The gradients of a model's training step, in parts of any size, in numbers that add up.

    It is traced, once, as a step is. What runs eagerly is traced, too, if that is possible: only a graph tells
    samples from other dimensions, and draws their random numbers.

    Attributes:
        written: The names of the variables, beside seeds and metrics, that a pass through the model may write.
    """

    def __init__(self, model: keras.Model, *, added_up: bool = False) -> None:
        self._model, self._added_up, self.draws, self.traced = model, added_up, False, True
        self.written: set[str] = set()
        self._seen: Any = None
        self._function = tf.function(self._compute, autograph=False)

    def compute(self, batch: Any, size: int) -> Outcome:
        """Computes a batch in parts of `size` samples, and lets everything be as it was before."""
        sums = self._run(batch, tf.constant(size))
        loss, outputs, gradients = (value.numpy() for value in sums)
        return Outcome(float(loss), gradients, outputs)

    def _run(self, batch: Any, size: Any) -> Any:
        if self.traced:
            try:
                graph = self._function.get_concrete_function(batch, size).graph
            except Exception:
                if not self._model.run_eagerly:
                    raise
                self.traced = False
            else:
                if graph is not self._seen:
                    self._note_written(graph)
                with put_back(graph.variables):
                    return self._function(batch, size)
        with put_back([variable.value for variable in self._model.variables]):
            return self._compute(batch, size)

    def _compute(self, batch: Any, size: Any) -> Any:
        model = self._model
        weights = model.trainable_variables
        regularised = [weight for weight in weights if weight.regularizer is not None]

        def compute(part: Part) -> PartResult:
            with (
                tf.GradientTape() as tape,
                # In a stateless scope Keras looks for the values of regularised weights in the scope alone.
                keras.StatelessScope([(w, w.value) for w in regularised], collect_losses=True) as scope,
            ):
                before = [(weight, scope.get_current_value(weight)) for weight in model.weights]
                y_pred = keras_layers.forward(model, part.x, training=True)
                self.written.update(w.path for w, old in before if scope.get_current_value(w) is not old)
                objective, shown, _ = losses_of_part(
                    model, part, y_pred, training=True, added_up=self._added_up
                )
            gradients = tape.gradient(objective, [weight.value for weight in weights])
            return (shown, _sum_outputs(y_pred), sketch(gradients, weights)), []

        zeros = [tf.zeros(shape, tf.float64) for shape in ([], [2], [len(weights), COLUMNS])]
        with keras_layers.statistics_left_alone(), _noticing_draws(self):
            parted = PartedBatch(model, batch, lambda _: size, trains=False)
            return parted.add_up(compute, tuple(zeros))[0]

    def _note_written(self, graph: Any) -> None:
        """Notes the variables that ops of TensorFlow's write; what Keras assigns is in its scope."""
        generators = [shared_seed_generator(), *keras_layers.own_seed_generators(self._model)]
        seeds = {id(generator.state.value) for generator in generators if generator is not None}
        names = {id(v.handle): v.name.partition(":")[0] for v in graph.variables if id(v) not in seeds}
        handles = {inner.name.partition(":")[0]: id(handle) for handle, inner in graph.captures}
        written = (handles.get(name) for name in find_written(graph.as_graph_def()))
        self.written.update(names[handle] for handle in written if handle in names)
        self._seen = graph


def _sum_outputs(y_pred: Any) -> Any:
    """Returns sums of squares, which tell when the output of a sample is another."""
    total = tf.zeros([2], tf.float64)
    for output in tf.nest.flatten(y_pred):
        dense = getattr(output, "flat_values", output)
        if not isinstance(dense, tf.Tensor) or dense.dtype == tf.string or not dense.shape.rank:
            continue
        rows = tf.cast(tf.reshape(dense, [tf.shape(dense)[0], -1]), tf.float64)
        waves = tf.cos(tf.range(tf.cast(tf.shape(rows)[1], tf.float64), dtype=tf.float64))
        total += tf.stack([tf.reduce_sum(rows**2), tf.reduce_sum(tf.reduce_sum(rows * waves, 1) ** 2)])
    return total


def _vary(few: Any) -> Iterator[Any]:
    """Yields samples as they are, then the same with other numbers in them."""

    def changed(function: Callable[[Any], Any], tensors: Any) -> Any:
        def change(leaf: Any) -> Any:
            """Ragged and sparse tensors stay as they are, and so does text."""
            dense = isinstance(leaf, tf.Tensor) and leaf.dtype != tf.string
            return tf.constant(function(leaf.numpy()), leaf.dtype) if dense else leaf

        return keras.tree.map_structure(change, tensors)

    yield few
    yield changed(vary_samples, few)
    yield tuple(changed(mix_labels if place == 1 else tell_apart, part) for place, part in enumerate(few))


def _take(leaf: Any, rows: Sequence[int]) -> Any:
    if leaf is None:
        return None
    if isinstance(leaf, tf.SparseTensor):
        rest = leaf.dense_shape.numpy()[1:]
        one_each = [tf.sparse.slice(leaf, [row, *[0] * len(rest)], [1, *rest]) for row in rows]
        return tf.sparse.concat(0, one_each)
    if isinstance(leaf, tf.RaggedTensor) or getattr(leaf, "dtype", None) == tf.string:
        return tf.gather(leaf, rows)  # text is on the host, and Keras takes no array of it
    if isinstance(leaf, tf.Tensor):  # on the host: the device may be out of memory
        leaf = leaf.numpy()
    # Not every layout of SciPy's sparse matrices can be indexed, and a table of pandas is by its columns.
    leaf = leaf.tocsr() if hasattr(leaf, "tocsr") else getattr(leaf, "iloc", leaf)
    return leaf[rows]


@contextmanager
def _without_xla(model: keras.Model) -> Iterator[None]:
    """Lets a model's steps be traced without XLA, which has random numbers of its own."""
    compiled = model.jit_compile
    model.jit_compile = False
    try:
        yield
    finally:
        model.jit_compile = compiled


@contextmanager
def _noticing_draws(step: _Step) -> Iterator[None]:
    def note(draw: Draw) -> Any:
        step.draws = True
        return draw.call(**draw.arguments)

    with draws_replaced(note):
        yield
