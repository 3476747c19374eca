"""Choosing segments: what is promised is kept, and more memory never costs more time."""

import re
from itertools import groupby, pairwise
from typing import Any

import keras
import pytest
from keras import layers

from memfit.errors import InvalidInput
from memfit.sizes import Size
from memfit.steps.rematerialisation import Segments
from memfit.steps.rematerialisation.choose import _Chooser, choose, find_choices
from memfit.steps.rematerialisation.costs import flops
from memfit.steps.rematerialisation.options import Choices
from memfit.steps.rematerialisation.peak import predicted_peak
from memfit.steps.rematerialisation.refinement import Choice, Ledger, refined
from memfit.steps.rematerialisation.trace import Trace, trace


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


def test_less_memory_costs_more_time(choices: tuple[Segments, ...]) -> None:
    assert len(choices) >= 3
    for faster, smaller in pairwise(choices):
        assert smaller.activation_bytes < faster.activation_bytes
        assert smaller.recomputed >= faster.recomputed
    assert choices[-1].activation_bytes < 0.45 * choices[-1].stock_bytes


def test_the_first_to_go_are_normalisations_and_activations(choices: tuple[Segments, ...]) -> None:
    half = next(choice for choice in choices if choice.activation_bytes < 0.7 * choice.stock_bytes)
    assert half.recomputed < 0.15


def test_a_choice_stays_within_the_budget_it_was_made_for(model: keras.Model) -> None:
    half = choose(model, 8, 0.5)
    assert half.activation_bytes <= 0.5 * half.stock_bytes
    assert choose(model, 8, int(half.activation_bytes)).activation_bytes <= half.activation_bytes


def test_a_budget_below_all_choices_is_refused_with_the_smallest_there_is(model: keras.Model) -> None:
    with pytest.raises(InvalidInput, match=r"do not fit.*Give at least \d+ bytes") as refused:
        choose(model, 8, 1000)
    advised = int(re.search(r"at least (\d+) bytes", str(refused.value))[1])
    assert choose(model, 8, advised).activation_bytes <= advised


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


def test_what_is_counted_of_large_tensors_is_the_peak_but_for_the_small_ones(model: keras.Model) -> None:
    found = Choices(trace(model, 8))
    ledger = Ledger(found)
    large = sorted({tensor for tensors in found.needed for tensor in tensors})
    small = sum(map(found.size, found.small))
    for kept, starts in ((large, ()), (large[::2], ()), (large[::3], tuple(found.cuts[3:-1:4]))):
        counted = max(ledger.count(Choice(frozenset(kept), starts)).totals)
        assert counted <= predicted_peak(found.trace, found.small | set(kept), starts) <= counted + small


def test_a_refined_choice_is_smaller_than_what_it_came_from(model: keras.Model) -> None:
    found = Choices(trace(model, 8))
    ledger = Ledger(found)
    stock = Choice(frozenset(tensor for tensors in found.needed for tensor in tensors), ())
    aim = 0.6 * max(ledger.count(stock).totals)
    smaller = refined(ledger, stock, aim)
    assert smaller is not None
    assert max(ledger.count(smaller).totals) <= aim
    assert refined(ledger, stock, 1.0) is None


@pytest.mark.parametrize("batch", [8, None], ids=["known batch", "unknown batch"])
def test_no_three_tensors_are_added_at_once(batch: int | None) -> None:
    """TensorFlow's memory optimizer gives such a sum two more buffers where memory is short."""
    import tensorflow as tf

    found = trace(residual(), 8, tf.TensorSpec((batch, 8, 8, 3)))
    assert not [op for op in found.ops if op.type == "AddN" and len(op.inputs) > 2]
    assert sum(op.type in ("AddN", "AddV2") for op in found.ops[found.forward_count :]) > 3


def test_no_choice_is_dearer_than_cuts_of_the_same_memory(model: keras.Model) -> None:
    chooser = _Chooser(trace(model, 8), 8)
    for choice in chooser.down_to(0.0):
        cuts = chooser.within(choice.activation_bytes)
        assert cuts is None or choice.recomputed <= cuts.recomputed


def test_no_concatenation_is_kept_for_a_convolution_and_no_gradient_of_one_made() -> None:
    image = keras.Input((16, 16, 3))
    left, right = (layers.Conv2D(width, 3, padding="same")(image) for width in (4, 8))
    joined = layers.Conv2D(6, 3, padding="same")(layers.concatenate([left, right]))
    found = trace(keras.Model(image, joined), 8)
    concat = next(index for index, op in enumerate(found.forward) if op.type == "ConcatV2")
    backward = [found.ops[index] for index in found.backward]
    assert not [op for op in backward if op.reads_values and (concat, 0) in op.inputs]
    largest = 8 * 16 * 16 * 8 * 4  # the gradient of the larger part
    assert max(size for op in backward for size in op.sizes) == largest


@pytest.mark.parametrize("by_branch", [False, True])
def test_by_branch_the_gradients_of_one_branch_are_done_before_the_next_begins(by_branch: bool) -> None:
    image = keras.Input((8, 8, 4))
    branches = []
    for side in ("left", "right"):
        x = image
        for number in range(3):
            x = layers.Conv2D(4, 3, padding="same", name=f"{side}_{number}")(x)
        branches.append(x)
    joined = layers.Conv2D(4, 3, padding="same", name="joined")(layers.Add()(branches))
    found = trace(keras.Model(image, joined), 8, by_branch=by_branch)
    filters = [op for op in found.ops if op.type == "Conv2DBackpropFilter"]
    sides = [re.search("left|right|joined", found.ops[op.level].name)[0] for op in filters]
    turns = [side for side, _ in groupby(sides)]
    # Keras calls the layers of both branches by turns, and a backward pass goes against that.
    assert turns == ["joined", "right", "left"] if by_branch else len(turns) > 4


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


def kept_by_name(found: Trace, segments: Segments) -> tuple[set[Any], list[int]]:
    """What a choice keeps of another trace, and where its segments start, as a step that applies it finds them."""
    place = {op.name: index for index, op in enumerate(found.forward)}
    kept = (tensor.rpartition(":") for tensor in segments.kept)
    return {(place[name], int(output)) for name, _, output in kept}, sorted(map(place.get, segments.starts))


@pytest.mark.parametrize("build", [attention, residual], ids=lambda build: build.__name__)
def test_a_choice_takes_as_much_where_the_graph_does_not_know_the_batch(build: Any) -> None:
    """A step that `fit` traces knows no batch: TensorFlow spreads and sums otherwise there, and hides sizes."""
    import tensorflow as tf

    model = build()
    found, unknown = trace(model, 32), trace(model, 32, tf.TensorSpec((None, *model.input_shape[1:])))
    for segments in find_choices(model, 32):
        peak = predicted_peak(found, *kept_by_name(found, segments))
        assert peak == pytest.approx(segments.activation_bytes, rel=0.01), "a kept tensor has no name"
        assert predicted_peak(unknown, *kept_by_name(unknown, segments)) == pytest.approx(peak, rel=0.05)


def test_the_trace_leaves_the_model_as_it_was(model: keras.Model) -> None:
    before = [variable.numpy().tobytes() for variable in model.variables]
    found = trace(model, 4)
    assert [variable.numpy().tobytes() for variable in model.variables] == before
    assert model.losses == []
    assert sum(op.type == "Conv2D" for op in found.forward) == 6


def test_flops_are_those_of_the_textbook() -> None:
    import tensorflow as tf

    counted: dict[str, float] = {}

    @tf.function
    def ops(x: Any, f: Any, a: Any, b: Any) -> Any:
        for made in (tf.nn.conv2d(x, f, 1, "SAME"), a @ b, tf.einsum("ij,jk->ik", a, b)):
            counted[made.op.type] = flops(made.op)
        depthwise = tf.nn.depthwise_conv2d(x, f, [1, 1, 1, 1], "SAME")
        counted[depthwise.op.type] = flops(depthwise.op)
        return 0

    ops(tf.zeros((2, 8, 8, 3)), tf.zeros((3, 3, 3, 5)), tf.zeros((4, 6)), tf.zeros((6, 7)))
    assert counted["Conv2D"] == 2 * (2 * 8 * 8 * 5) * (3 * 3 * 3)
    assert counted["DepthwiseConv2dNative"] == 2 * (2 * 8 * 8 * 15) * (3 * 3)
    assert counted["MatMul"] == counted["Einsum"] == 2 * 4 * 6 * 7
