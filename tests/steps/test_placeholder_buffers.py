"""What outlives a planned step leaves the memory in one piece for the next."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from memfit.steps.rematerialisation import find_choices
from prepared import in_arena

MIB = 2**20
BATCH, MEMORY = 32, "256MiB"


def blocks() -> keras.Model:
    keras.backend.clear_session()  # layers of the same names every time
    x = inputs = keras.Input((48, 48, 3))
    for filters in (24, 40, 56, 72, 88, 104):
        x = layers.Conv2D(filters, 3, padding="same", strides=1 if filters == 24 else 2)(x)
        x = layers.Dropout(0.1)(layers.Activation("relu")(layers.BatchNormalization()(x)))
    model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], jit_compile=False)
    return model


def broken_into() -> list[float]:
    """The part of what is free that one tensor could not have, before each step; runs in an arena."""
    import tensorflow as tf

    import memfit
    from memfit.steps.train_step import TrainStep
    from memfit.training.guard.events import free
    from training.parity import levers

    found = []

    def largest() -> int:
        """The largest tensor that can be had, to 4 MiB."""
        low, high = 0, (free() or 0) // MIB
        while high - low > 4:
            middle = (low + high) // 2
            try:
                tf.raw_ops.Empty(shape=[middle, MIB], dtype=tf.uint8, init=False)
                low = middle
            except tf.errors.ResourceExhaustedError:
                high = middle
        return low * MIB

    compute = TrainStep.compute

    def look_first(self: Any, data: Any, spec: Any = None) -> Any:
        found.append(1 - largest() / (free() or 1))
        return compute(self, data, spec)

    # In this process alone: nothing that is public runs between what the guard notes and its step.
    TrainStep.compute = look_first  # type: ignore[method-assign]
    model = blocks()
    plan = levers(model, BATCH, inputs_on_host=True, segments=find_choices(model, BATCH)[-1])
    x, y = np.ones((3 * BATCH, 48, 48, 3), "float32"), np.zeros(3 * BATCH, "int32")
    memfit.fit(model, x, y, batch_size=BATCH, verbose=0, plan=plan)
    return found


def test_the_next_step_finds_what_is_free_in_one_piece() -> None:
    first, *later = in_arena(broken_into, memory=MEMORY)
    assert len(later) == 2
    assert later == pytest.approx([first] * 2, abs=0.02)


def between_large_tensors(gaps: bool) -> bool:
    """Whether what is small lies between two large tensors, made before and after it; runs in an arena."""
    import tensorflow as tf

    from memfit.budgets.peaks import take_one_region
    from memfit.steps.placeholder_buffers import PlaceholderBuffers

    def tensor(size: int) -> Any:
        return tf.raw_ops.Empty(shape=[size], dtype=tf.uint8)

    def place(tensor: Any) -> int:
        return int(np.asarray(memoryview(tensor)).ctypes.data)

    variable = tf.Variable(tf.zeros(100), trainable=False)
    take_one_region()
    begin = place(tensor(100 * MIB))
    filling = [tensor(400)]
    while not begin <= place(filling[-1]) < begin + 100 * MIB:  # what was left over elsewhere
        filling.append(tensor(400))
    kept = [PlaceholderBuffers([variable])] if gaps else []
    before, small, after = tensor(50 * MIB), tensor(400), tensor(50 * MIB)
    assert len(kept) == gaps
    return place(before) < place(small) < place(after)


@pytest.mark.parametrize("gaps", [False, True])
def test_what_is_small_finds_a_gap_of_its_size(gaps: bool) -> None:
    assert in_arena(between_large_tensors, gaps, memory=MEMORY) is not gaps
