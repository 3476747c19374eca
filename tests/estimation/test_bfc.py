"""The model of TensorFlow's allocator, alone and against the real one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.estimation.replay.allocator import BFC, OutOfMemory
from prepared import in_arena

MIB = 2**20


def test_a_request_is_rounded_to_256_bytes():
    allocator = BFC()
    allocator.allocate(1)
    allocator.allocate(257)
    assert allocator.in_use == 256 + 512


def test_a_chunk_of_less_than_twice_the_request_is_handed_out_whole():
    allocator = BFC()
    first = allocator.allocate(MIB)
    allocator.allocate(MIB)  # the rest of the first region
    allocator.release(first)
    before = allocator.in_use
    allocator.allocate(600 * 1024)
    assert allocator.in_use - before == MIB


def test_a_chunk_of_twice_the_request_is_split():
    allocator = BFC()
    first = allocator.allocate(MIB)
    allocator.allocate(MIB)  # the rest of the first region
    allocator.release(first)
    before = allocator.in_use
    allocator.allocate(512 * 1024)
    assert allocator.in_use - before == 512 * 1024


def test_regions_double_and_a_limit_ends_them():
    allocator = BFC(limit=8 * MIB)
    allocator.allocate(2 * MIB)
    assert allocator.reserved == 2 * MIB
    allocator.allocate(4 * MIB)
    assert allocator.reserved == 6 * MIB
    with pytest.raises(OutOfMemory):
        allocator.allocate(3 * MIB)


@given(st.lists(st.tuples(st.integers(0, 3 * MIB), st.booleans()), max_size=60))
def test_whatever_is_taken_can_be_given_back_and_is_whole_again(requests):
    allocator = BFC()
    held = []
    for size, give_back in requests:
        held.append(allocator.allocate(size))
        if give_back:
            allocator.release(held.pop(0))
        assert allocator.in_use == sum(chunk[0] for chunk in held) <= allocator.reserved
    for chunk in held:
        allocator.release(chunk)
    assert allocator.in_use == 0
    assert sum(chunk[0] for chunk in allocator._at.values()) == allocator.reserved


def _compared_with_tensorflow() -> tuple[int, int]:
    """Counts allocations of a real training, and those for which the model hands out another chunk."""
    import tensorflow as tf

    # One thread: two threads' events can carry the same time, and then their order is not known.
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    import keras
    import numpy as np

    from memfit.estimation.recording.trace import mark, traced

    with traced() as seen:
        layers = [keras.layers.Conv2D(width, 3, activation="relu") for width in (16, 24, 40)]
        model = keras.Sequential(
            [keras.Input((40, 40, 3)), *layers, keras.layers.Flatten(), keras.layers.Dense(10)]
        )
        model.compile("adam", "mse", jit_compile=False)
        for batch in (16, 7, 16):
            model.train_on_batch(np.ones((batch, 40, 40, 3), "float32"), np.ones((batch, 10), "float32"))
        mark()
    allocator, chunks, count, wrong = BFC(), {}, 0, 0
    for event in seen[0]:
        if not event.freed:
            chunks[event.address] = allocator.allocate(event.requested)
            count += 1
            wrong += chunks[event.address][0] != event.occupied
        elif event.address in chunks:
            allocator.release(chunks.pop(event.address))
    return count, wrong


def test_it_hands_out_the_chunks_that_tensorflow_hands_out():
    count, wrong = in_arena(_compared_with_tensorflow, memory="4GiB")
    assert count > 1000
    assert wrong == 0
