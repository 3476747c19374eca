"""Choosing segments: what is promised is kept, and more memory never costs more time."""

import re
from itertools import groupby, pairwise
from typing import Any

import keras
import pytest
import tensorflow as tf
from keras import layers

from memfit.errors import InvalidInput
from memfit.sizes import Size
from memfit.steps.rematerialisation import Segments, find_choices
from memfit.steps.rematerialisation.choosing.alive import Choice, Ledger
from memfit.steps.rematerialisation.choosing.find import split_by_size
from memfit.steps.rematerialisation.choosing.model_trace import trace_model
from memfit.steps.rematerialisation.choosing.refine import refine
from memfit.steps.rematerialisation.op_costs import count_flops
from memfit.steps.rematerialisation.trace import TensorId, Trace


@pytest.fixture(scope="module")
def model() -> keras.Model:
    x = image = keras.Input((16, 16, 3))
    for _ in range(6):
        x = layers.Conv2D(8, 3, padding="same")(x)
        x = layers.Activation("relu")(layers.BatchNormalization()(x))
    return keras.Model(image, layers.Dense(2)(layers.GlobalAveragePooling2D()(x)))


@pytest.fixture(scope="module")
def choices(model: keras.Model) -> tuple[Segments, ...]:
    return find_choices(model, 8)


@pytest.fixture(scope="module")
def trace(model: keras.Model) -> Trace:
    return trace_model(model, 8).rewritten


def test_less_memory_costs_more_time(choices: tuple[Segments, ...]) -> None:
    assert len(choices) >= 3
    for faster, smaller in pairwise(choices):
        assert smaller.activation_bytes < faster.activation_bytes
        assert smaller.recomputed >= faster.recomputed
    assert choices[-1].activation_bytes < 0.45 * choices[-1].stock_bytes


def test_the_first_to_go_are_normalisations_and_activations(choices: tuple[Segments, ...]) -> None:
    half = next(choice for choice in choices if choice.activation_bytes < 0.7 * choice.stock_bytes)
    assert half.recomputed < 0.15


def test_a_subclassed_model_needs_the_shapes_of_its_inputs() -> None:
    class Net(keras.Model):
        def call(self, x: Any) -> Any:
            return x

    with pytest.raises(InvalidInput, match="Pass specs="):
        find_choices(Net(), 8)


def test_segments_read_what_they_wrote_and_print_as_a_table(choices: tuple[Segments, ...]) -> None:
    assert Segments.from_json(choices[0].to_json()) == choices[0]
    with pytest.raises(InvalidInput, match="to_json"):
        Segments.from_json({"kept": []})
    text = repr(Segments(8, ("a",), ("b:0",), Size("300MiB"), Size("100MiB"), 0.12))
    assert text.splitlines() == [
        "activations at batch      8",
        "kept as stock Keras does  300 MiB",
        "rematerialised            100 MiB (1/3.0)",
        "segments                  2",
        "extra time a step         12%",
        "(predicted)",
    ]


def count_alive(trace: Trace, choice: Choice) -> int:
    """The peak, op by op in the order that a rewritten step runs in, in the plainest way (nothing in place)."""
    order = [(0, index) for index in range(trace.forward_count)]
    for run, segment in reversed(list(enumerate(trace.order_segments(choice.kept, choice.starts), 1))):
        order += [(run, index) for index in segment]
    run_again = {(run, index) for run, index in order if run and index < trace.forward_count}
    steps = []
    for run, index in order:
        op = trace.ops[index]
        if op.reads_values and not op.is_alias:
            roots = [trace.root(tensor) for tensor in op.inputs]
            reads = {(run if (run, root[0]) in run_again else 0, root) for root in roots if root[0] >= 0}
            made_in = run if index < trace.forward_count else 0
            steps.append((reads, {(made_in, (index, number)) for number in range(len(op.sizes))}))
    last = {buffer: time for time, (reads, _) in enumerate(steps) for buffer in reads}
    alive: set[tuple[int, TensorId]] = set()
    peak = 0
    for time, (_, writes) in enumerate(steps):
        alive |= writes
        peak = max(peak, sum(trace.size(tensor) for _, tensor in alive))
        alive = {buffer for buffer in alive if last.get(buffer, -1) > time}
    return peak


def test_the_ledger_counts_what_is_alive_in_the_order_that_a_step_runs_in(model: keras.Model) -> None:
    trace = trace_model(model, 8, compiled=True).rewritten
    ledger = Ledger(trace)
    _, always, read = split_by_size(trace)
    large = sorted(read)
    starts = tuple(tensor[0] for tensor in large[1::4])
    for kept, cuts in ((large, ()), (large[::2], ()), (large[::3], starts), ([], ())):
        choice = Choice(always | set(kept), cuts)
        assert ledger.count(choice).peak == count_alive(trace, choice)


def test_a_ledger_of_large_tensors_is_off_by_the_small_ones_at_most(trace: Trace) -> None:
    full = Ledger(trace)
    small_bytes, always, read = split_by_size(trace)
    ledger = Ledger(trace, small_bytes)
    small = sum(map(trace.size, always))
    large = sorted(read)
    starts = tuple(tensor[0] for tensor in large[1::4])
    for kept, cuts in ((large, ()), (large[::2], ()), (large[::3], starts)):
        counted = ledger.count(Choice(frozenset(kept), cuts)).peak
        assert counted <= full.count(Choice(always | set(kept), cuts)).peak <= counted + small


def test_a_refined_choice_is_smaller_than_what_it_came_from(trace: Trace) -> None:
    small_bytes, _, read = split_by_size(trace)
    ledger = Ledger(trace, small_bytes)
    stock = Choice(read, ())
    aim = 0.6 * ledger.count(stock).peak
    smaller = refine(ledger, stock, aim)
    assert smaller is not None
    assert ledger.count(smaller).peak <= aim
    assert refine(ledger, stock, 1.0) is None


@pytest.mark.parametrize("batch", [8, None], ids=["known batch", "unknown batch"])
def test_no_three_tensors_are_added_at_once(batch: int | None) -> None:
    """TensorFlow's memory optimizer gives such a sum two more buffers where memory is short."""
    trace = trace_model(residual(), 8, tf.TensorSpec((batch, 8, 8, 3))).rewritten
    assert not [op for op in trace.ops if op.type == "AddN" and len(op.inputs) > 2]
    assert sum(op.type in ("AddN", "AddV2") for op in trace.ops[trace.forward_count :]) > 3


def test_no_concatenation_is_kept_for_a_convolution_and_no_gradient_of_one_made() -> None:
    image = keras.Input((16, 16, 3))
    left, right = (layers.Conv2D(width, 3, padding="same")(image) for width in (4, 8))
    joined = layers.Conv2D(6, 3, padding="same")(layers.concatenate([left, right]))
    trace = trace_model(keras.Model(image, joined), 8).rewritten
    concat = next(index for index, op in enumerate(trace.forward) if op.type == "ConcatV2")
    backward = [trace.ops[index] for index in trace.backward]
    assert not [op for op in backward if op.reads_values and (concat, 0) in op.inputs]
    largest = 8 * 16 * 16 * 8 * 4  # the gradient of the larger part
    assert max(size for op in backward for size in op.sizes) == largest


@pytest.mark.parametrize("compiled", [False, True])
def test_under_xla_the_gradients_of_one_branch_are_done_before_the_next_begins(compiled: bool) -> None:
    image = keras.Input((8, 8, 4))
    branches = []
    for side in ("left", "right"):
        x = image
        for number in range(3):
            x = layers.Conv2D(4, 3, padding="same", name=f"{side}_{number}")(x)
        branches.append(x)
    joined = layers.Conv2D(4, 3, padding="same", name="joined")(layers.Add()(branches))
    trace = trace_model(keras.Model(image, joined), 8, compiled=compiled).rewritten
    filters = [op for op in trace.ops if op.type == "Conv2DBackpropFilter"]
    sides = [re.search("left|right|joined", trace.ops[op.level].name)[0] for op in filters]
    turns = [side for side, _ in groupby(sides)]
    # Keras calls the layers of both branches by turns, and a backward pass goes against that.
    assert turns == ["joined", "right", "left"] if compiled else len(turns) > 4


def attention() -> keras.Model:
    """Dense layers and attention over tokens, whose products reshape and so hide the batch in another axis."""
    x = tokens = keras.Input((12, 16))
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 8)(x, x))
        x = x + layers.Dense(16)(layers.Dropout(0.1)(layers.Dense(64, activation="gelu")(x)))
    return keras.Model(tokens, layers.Dense(4)(x))


def residual() -> keras.Model:
    """Normalisations and skips, whose gradients are spread and added."""
    x = image = keras.Input((8, 8, 3))
    for _ in range(3):
        x = layers.Conv2D(8, 3, padding="same", use_bias=False)(x)
        inner = layers.ReLU()(layers.BatchNormalization()(x))
        x = x + layers.Conv2D(8, 1)(layers.GlobalAveragePooling2D(keepdims=True)(inner)) * inner
    return keras.Model(image, layers.Dense(2)(layers.GlobalAveragePooling2D()(x)))


def peak_of(trace: Trace, segments: Segments) -> int:
    """What segments take in another trace, in which a step that applies them finds their tensors by name."""
    indices = {op.name: index for index, op in enumerate(trace.forward)}
    kept = (tensor.rpartition(":") for tensor in segments.kept)
    choice = Choice(
        frozenset((indices[name], int(output)) for name, _, output in kept),
        tuple(sorted(indices[name] for name in segments.starts)),
    )
    return Ledger(trace).count(choice).peak


@pytest.mark.parametrize("build", [attention, residual], ids=lambda build: build.__name__)
def test_a_choice_takes_as_much_where_the_graph_does_not_know_the_batch(build: Any) -> None:
    """A step that `fit` traces knows no batch: TensorFlow spreads and sums otherwise there, and hides sizes."""
    model = build()
    known = trace_model(model, 32).rewritten
    unknown = trace_model(model, 32, tf.TensorSpec((None, *model.input_shape[1:]))).rewritten
    for segments in find_choices(model, 32):
        peak = peak_of(known, segments)
        assert peak == pytest.approx(segments.activation_bytes, rel=0.01), "a kept tensor has no name"
        assert peak_of(unknown, segments) == pytest.approx(peak, rel=0.05)


def test_the_search_leaves_the_model_as_it_was(model: keras.Model) -> None:
    before = [variable.numpy().tobytes() for variable in model.variables]
    find_choices(model, 4)
    assert [variable.numpy().tobytes() for variable in model.variables] == before
    assert model.losses == []


def test_flops_are_those_of_the_textbook() -> None:
    counted: dict[str, float] = {}

    @tf.function
    def ops(x: Any, f: Any, a: Any, b: Any) -> Any:
        for result in (tf.nn.conv2d(x, f, 1, "SAME"), a @ b, tf.einsum("ij,jk->ik", a, b)):
            counted[result.op.type] = count_flops(result.op)
        depthwise = tf.nn.depthwise_conv2d(x, f, [1, 1, 1, 1], "SAME")
        counted[depthwise.op.type] = count_flops(depthwise.op)
        return 0

    ops(tf.zeros((2, 8, 8, 3)), tf.zeros((3, 3, 3, 5)), tf.zeros((4, 6)), tf.zeros((6, 7)))
    assert counted["Conv2D"] == 2 * (2 * 8 * 8 * 5) * (3 * 3 * 3)
    assert counted["DepthwiseConv2dNative"] == 2 * (2 * 8 * 8 * 15) * (3 * 3)
    assert counted["MatMul"] == counted["Einsum"] == 2 * 4 * 6 * 7
