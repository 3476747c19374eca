"""Which data can be gone back to, against the order in which Keras really reads it."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import memfit
from memfit.compat import keras_data, tf_runtime
from memfit.errors import InvalidInput
from memfit.training.feeding import feed

ROWS = np.arange(22, dtype="float32")


@pytest.fixture(autouse=True)
def a_seed_of_its_own() -> Iterator[None]:
    before = tf_runtime.global_seed()
    yield
    tf.random.set_seed(before)


def pairs(iterator: Any) -> list[list[float]]:
    return [keras.tree.flatten(batch)[0].numpy().tolist() for batch in iterator]


@pytest.mark.parametrize("shuffle", [True, False, "batch"])
def test_arrays_are_opened_again_in_the_order_of_keras(shuffle: Any) -> None:
    keras.utils.set_random_seed(3)
    stock = keras_data.array_dataset(ROWS[:20], ROWS[:20], None, 4, shuffle, None)
    found = feed(ROWS, ROWS, batch_size=4, shuffle=shuffle, validation_split=2 / 22)
    assert found.reproducible
    epochs = [pairs(stock) for _ in range(2)]
    assert pairs(found.reopen(0, 3)) == epochs[0][3:] == epochs[1][3:]


def test_arrays_that_are_shuffled_without_a_seed_are_another_order_each_time() -> None:
    tf.random.set_seed(None)
    found = feed(ROWS, ROWS, batch_size=4)
    assert not found.reproducible
    assert "no seed" in found.why_not
    with pytest.raises(InvalidInput, match="no seed"):
        found.reopen(0, 1)
    assert feed(ROWS, ROWS, batch_size=4, shuffle=False).reproducible


def test_a_pipeline_of_memfit_is_opened_at_any_batch_of_any_epoch() -> None:
    data = memfit.arrays(ROWS, batch_size=4, shuffle=True, seed=5)
    found = feed(data)
    epochs = [pairs(data) for _ in range(3)]
    assert epochs[0] != epochs[1]
    assert pairs(found.reopen(1, 2)) == epochs[1][2:]


def test_a_dataset_in_a_fixed_order_is_opened_again_here() -> None:
    data = tf.data.Dataset.from_tensor_slices(ROWS).cache().map(lambda x: x + 1).batch(4).prefetch(1)
    assert pairs(feed(data).reopen(7, 2)) == pairs(data)[2:]
    frozen = tf.data.Dataset.range(22).shuffle(9, seed=1, reshuffle_each_iteration=False).batch(4)
    assert pairs(feed(frozen).reopen(0, 2)) == pairs(frozen)[2:]


def test_a_seeded_shuffle_comes_again_in_a_new_process_but_not_in_this_one() -> None:
    found = feed(tf.data.Dataset.range(22).shuffle(9, seed=1).batch(4))
    assert found.reproducible
    with pytest.raises(InvalidInput, match="moved on"):
        found.reopen(0, 1)


def number(_: Any) -> Any:
    return tf.random.uniform(())


def test_what_is_left_to_chance_is_named() -> None:
    tf.random.set_seed(None)
    some = tf.data.Dataset.range(8)
    flip = keras.layers.RandomFlip()
    picture = tf.zeros((2, 2, 3))
    options = tf.data.Options()
    options.deterministic = False
    chance = {
        "shuffle() has no seed": some.shuffle(4).batch(2),
        "without a seed": some.map(number),
        "depend on how many": some.map(lambda _: flip(picture, training=True)),
        "Python code": tf.data.Dataset.from_generator(
            lambda: iter(range(3)), output_signature=tf.TensorSpec((), tf.int32)
        ),
        "any order (deterministic": some.map(lambda x: x, num_parallel_calls=2, deterministic=False),
        "options let elements": some.with_options(options),
        "any order": some.interleave(
            lambda x: tf.data.Dataset.from_tensors(x), num_parallel_calls=2, deterministic=False
        ),
        "freezes": some.shuffle(4, seed=1).cache(),
        "several threads": some.map(lambda _: tf.random.uniform((), seed=1), num_parallel_calls=2),
        "inside of a function": some.flat_map(lambda x: tf.data.Dataset.range(x).shuffle(3, seed=1)),
    }
    for reason, dataset in chance.items():
        assert reason in feed(dataset).why_not
    assert "rewound" in feed(iter([1, 2])).why_not
    seeded = some.map(lambda _: tf.random.uniform((), seed=1))
    assert feed(seeded).reproducible
    assert pairs(seeded) == pairs(seeded)
    assert feed(some.interleave(lambda x: tf.data.Dataset.from_tensors(x), num_parallel_calls=2)).reproducible


class Plain(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return ROWS[index * 4 : index * 4 + 4], ROWS[:4]


class Augmented(Plain):
    def __getitem__(self, index: int) -> Any:
        return ROWS[:4] + np.random.default_rng().normal(), ROWS[:4]


class Reordered(Plain):
    def on_epoch_end(self) -> None:
        pass


def test_a_py_dataset_is_reproducible_if_its_batches_and_their_order_are() -> None:
    assert feed(Plain()).reproducible
    assert "differs each time" in feed(Augmented()).why_not
    assert "on_epoch_end" in feed(Reordered()).why_not
    assert "several workers" in feed(Plain(workers=2)).why_not
    assert feed(Plain(workers=2), shuffle=False).reproducible
