"""Computing a step's largest convolutions in parts of the batch under XLA.

cuDNN may take as much memory again as a convolution reads and writes, and XLA itself pads and spreads a gradient
before it convolves it (a depthwise convolution with strides). Of a part of the batch both are a part. A sample's
result depends on that sample alone, and a filter's gradient is the sum over the parts.
"""

from collections.abc import Callable, Collection, Sequence
from math import prod
from typing import Any

import tensorflow as tf

from memfit.compat.tf_graphs import Op, Tensor, put_slice, redirect_readers, same_op, take_slice, together
from memfit.steps.segments import Segments

# Which inputs have the batch, and which gives the sizes of a result that has it.
_OF_SAMPLES: dict[str, tuple[int, int | None]] = {
    "Conv2D": (0, None),
    "Conv2DBackpropInput": (2, 0),
    "DepthwiseConv2dNative": (0, None),
    "DepthwiseConv2dNativeBackpropInput": (2, 0),
}
_OF_FILTERS = {"Conv2DBackpropFilter", "DepthwiseConv2dNativeBackpropFilter"}
# What reads and writes more than this part of a step's activations is computed in parts, and in how many.
_LARGE = 1 / 5
_PARTS = 16
# XLA convolves float32 with the channels first, and a loop's tensors have the order of axes that they are given.
_TO_CHANNELS_FIRST, _TO_CHANNELS_LAST = (0, 3, 1, 2), (0, 2, 3, 1)


def split_convolutions(
    graph_ops: Sequence[Op], segments: Segments, outputs: Collection[Tensor]
) -> Callable[[Tensor], Tensor]:
    """Replaces the largest convolutions of a graph by loops over parts of the batch.

    Args:
        segments: What the step keeps, and what its activations take.
        outputs: Tensors that were handed out already, and so cannot be replaced.

    Returns:
        What gives for each tensor the one to read instead of it.
    """
    most = _LARGE * segments.activation_bytes / segments.batch_size
    fixed = {tensor.ref() for tensor in outputs}
    replaced: dict[Any, Tensor] = {}
    for op in graph_ops:
        if op.type not in _OF_SAMPLES and op.type not in _OF_FILTERS:
            continue
        result = op.outputs[0]
        if result.ref() in fixed or _count_moved_bytes(op) <= most:
            continue
        readers = list(result.consumers())  # before there are those in the loop
        new = _split_over_filters(op) if op.type in _OF_FILTERS else _split_over_samples(op)
        redirect_readers(result, new, readers)
        replaced[result.ref()] = new
    return lambda tensor: replaced.get(tensor.ref(), tensor) if hasattr(tensor, "ref") else tensor


def _count_moved_bytes(op: Op) -> float:
    """Counts the bytes that a convolution reads and writes for each sample; 0 where it is left whole."""
    result = op.outputs[0]
    if op.type in _OF_FILTERS:
        batched, known = [op.inputs[0], op.inputs[2]], result.shape.is_fully_defined()
    else:
        batched, known = [op.inputs[_OF_SAMPLES[op.type][0]], result], True
    samples = [tensor.shape[1:] for tensor in batched]
    if not known or not all(shape.rank == 3 and shape.is_fully_defined() for shape in samples):
        return 0.0
    return float(result.dtype.size * sum(map(prod, samples))) if result.dtype.name == "float32" else 0.0


def _split_over_samples(op: Op) -> Tensor:
    """Computes a result with the batch axis: each part writes its samples."""
    batched, sizes = _OF_SAMPLES[op.type]
    inputs, zero = _store_inputs(op, [batched])
    height, width, channels = op.outputs[0].shape[1:].as_list()
    shape = [channels, height, width]

    def compute_part(number: Tensor, results: Tensor) -> tuple[Tensor, Tensor]:
        # The last part begins earlier where the batch cannot be divided: some samples are computed twice.
        size = _find_part_size(inputs[batched])
        read = [tensors[0] for tensors in inputs]
        read[batched] = _take_rows(inputs[batched], number, size)
        if sizes is not None:
            read[sizes] = tf.stack([size, height, width, channels])
        rows = tf.transpose(same_op(op, read).outputs[0], _TO_CHANNELS_FIRST)
        return number + 1, put_slice(results, rows, number * size)

    start = tf.fill(tf.stack([tf.shape(inputs[batched][0])[0], *shape]), zero)
    return tf.transpose(
        _loop(compute_part, tf.ensure_shape(start, [op.outputs[0].shape[0], *shape])), _TO_CHANNELS_LAST
    )


def _split_over_filters(op: Op) -> Tensor:
    """Computes a filter's gradient: each part adds its own."""
    inputs, zero = _store_inputs(op, [0, 2])
    shape = op.outputs[0].shape.as_list()

    def compute_part(number: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        # The last part begins earlier where the batch cannot be divided: samples that were counted are left out.
        size, batch = _find_part_size(inputs[0]), tf.shape(inputs[0][0])[0]
        places = tf.range(size) + tf.minimum(number * size, batch - size)
        is_new = tf.reshape(places >= number * size, [-1, 1, 1, 1])
        gradient = _take_rows(inputs[2], number, size)
        gradient = tf.where(is_new, gradient, tf.zeros_like(gradient))
        own = same_op(op, [_take_rows(inputs[0], number, size), tf.constant(shape), gradient]).outputs[0]
        return number + 1, total + tf.ensure_shape(own, shape)

    return _loop(compute_part, tf.fill(shape, zero))


def _store_inputs(op: Op, batched: Sequence[int]) -> tuple[list[list[Tensor]], Tensor]:
    """Returns for each input the tensors that it joins, those with the batch axis with the channels first.

    Besides, a zero that waits for them. XLA would make what a loop begins with at the beginning of the step, and
    the same one for several loops.
    """
    inputs = [
        [tf.transpose(piece, _TO_CHANNELS_FIRST) for piece in _list_pieces(tensor)]
        if number in batched
        else [tensor]
        for number, tensor in enumerate(op.inputs)
    ]
    floats = [tensor for tensors in inputs for tensor in tensors if tensor.dtype.is_floating]
    zero, *behind = together([tf.zeros([], op.outputs[0].dtype), *floats])
    after = iter(behind)
    stored = [
        [next(after) if tensor.dtype.is_floating else tensor for tensor in tensors] for tensors in inputs
    ]
    return stored, zero


def _list_pieces(tensor: Tensor) -> list[Tensor]:
    """Lists what a concatenation of channels joins: a part at a time is joined in the loop."""
    source = tensor
    while source.op.type == "XlaOptimizationBarrier":
        source = source.op.inputs[source.value_index]
    *pieces, axis = source.op.inputs if source.op.type == "ConcatV2" else (tensor, None)
    joins = axis is not None and tf.get_static_value(axis) in (-1, 3)
    return pieces if joins and all(piece.shape[1:].is_fully_defined() for piece in pieces) else [tensor]


def _find_part_size(pieces: Sequence[Tensor]) -> Tensor:
    """Returns the samples of a part: a constant for XLA, which knows all shapes."""
    return -(-tf.shape(pieces[0])[0] // _PARTS)


def _take_rows(pieces: Sequence[Tensor], number: Tensor, size: Tensor) -> Tensor:
    """Takes the rows of one part, and joins the pieces."""
    taken = [take_slice(piece, number * size, size) for piece in pieces]
    return tf.transpose(tf.concat(taken, axis=1) if len(taken) > 1 else taken[0], _TO_CHANNELS_LAST)


def _loop(compute_part: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], start: Tensor) -> Tensor:
    """Computes all parts one after the other."""
    return tf.while_loop(
        lambda number, _: number < _PARTS,
        compute_part,
        [0, start],
        maximum_iterations=_PARTS,
        parallel_iterations=1,
    )[1]
