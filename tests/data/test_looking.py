"""A look through data finds the largest batch, ends in time, and leaves what comes after it as it was."""

import time
from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf

from memfit.data.looking import look_at_shapes
from memfit.data.shapes import Seen, Shapes, covers, shape_of
from memfit.errors import CannotTell


def _lengths(lengths: list[int], batch: int = 2) -> tf.data.Dataset:
    sequences = tf.data.Dataset.from_tensor_slices(lengths).map(lambda length: (tf.ones([length]), 0.0))
    return sequences.padded_batch(batch)


def test_one_outlier_in_ten_thousand_batches_is_found_with_its_place() -> None:
    lengths = np.full(10_000, 7)
    lengths[7312] = 500
    found = look_at_shapes(_lengths(list(lengths), batch=1))
    assert found.largest() == [((1, 500), (1,))]
    assert found.seen[((1, 500), (1,))] == Seen(count=1, first=7312)
    assert found.describe(((1, 500), (1,))) == "batch 7,312 of 10,000: (1, 500), (1,)"
    assert found.complete
    assert found.look.startswith("looked at all 10,000 batches in ")
    assert found.joined(0.9) == ((1, 7), (1,))


def test_a_pipeline_that_repeats_for_ever_is_looked_through_once() -> None:
    found = look_at_shapes(_lengths([3, 4, 5, 6]).repeat().prefetch(1))
    assert found.batches == found.total == 2


def test_a_look_does_not_move_a_seeded_shuffle_on() -> None:
    def shuffled() -> tf.data.Dataset:
        keras.utils.set_random_seed(3)
        return _lengths([1, 2, 3, 4, 5, 6, 7, 8]).shuffle(4).map(lambda x, y: x)

    def read(dataset: tf.data.Dataset) -> list:
        return [batch.shape for _ in range(2) for batch in dataset]

    looked_at = shuffled()
    found = look_at_shapes(looked_at)
    assert "it is shuffled: a later epoch may put its longest samples into other batches" in found.look
    assert read(looked_at) == read(shuffled())


def test_a_slow_pipeline_is_looked_at_for_a_limited_time_and_that_is_said() -> None:
    def slow(number: np.ndarray) -> np.ndarray:
        time.sleep(0.02)
        return number

    dataset = _lengths([3] * 1000, batch=1).map(lambda x, y: (x, tf.numpy_function(slow, [y], tf.float32)))
    found = look_at_shapes(dataset, seconds=0.5)
    assert 1 <= found.batches <= 25
    assert not found.complete
    assert found.look.startswith(f"looked at {found.batches} of 1,000 batches in ")


def test_a_first_batch_that_takes_longer_than_the_look_is_looked_at_and_others_are_not() -> None:
    found = look_at_shapes(_lengths([3, 5, 7], batch=1), seconds=0.0)
    assert found.batches == 1
    assert not found.complete
    assert found.largest()[0][0] == (1, 3)


def test_what_might_notice_a_look_is_not_looked_at_before_a_training(tmp_path) -> None:
    def batches() -> Iterator[np.ndarray]:
        yield np.zeros(3, "float32")

    calling = tf.data.Dataset.from_generator(batches, output_signature=tf.TensorSpec([None]))
    assert look_at_shapes(calling).batches == 1
    with pytest.raises(CannotTell, match="it runs Python code"):
        look_at_shapes(calling, careful=True)
    with pytest.raises(CannotTell, match="unfinished cache file"):
        look_at_shapes(_lengths([1, 2]).cache(str(tmp_path / "cache")))
    generator = batches()
    with pytest.raises(CannotTell, match="without losing its batches"):
        look_at_shapes(generator)
    assert len(list(generator)) == 1


def test_a_py_dataset_is_looked_through_and_draws_the_same_numbers_afterwards() -> None:
    class Data(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 5

        def __getitem__(self, number: int) -> tuple:
            return {"a": np.random.random((2, 3 + number))}, np.zeros((2, 1)), None

    np.random.seed(0)
    found = look_at_shapes(Data())
    assert found.largest() == [((2, 7), (2, 1))]
    assert found.like(((2, 7), (2, 1)))[0]["a"].shape == (2, 7)
    assert np.random.random() == np.random.RandomState(0).random()


def test_ragged_batches_are_as_long_as_their_longest_row() -> None:
    ragged = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [1, 2, 3], [1, 2]])).ragged_batch(3)
    found = look_at_shapes(ragged)
    assert list(found.seen) == [((3, 3),)]
    assert "longest row" in found.look
    assert [shape_of(batch) for batch in ragged] == [((3, 3),)]  # as the guard sees it in training


def test_images_of_two_directions_are_both_the_largest_and_covered_by_a_third_shape() -> None:
    wide, high, small = ((4, 30, 60, 3),), ((4, 60, 30, 3),), ((2, 30, 30, 3),)
    seen = {wide: Seen(3, 0), high: Seen(5, 1), small: Seen(2, 2)}
    found = Shapes(seen, (tf.TensorSpec(None),), 10, True, 10, 0.1)
    assert found.largest() == [wide, high]
    assert found.vary
    assert found.joined(1.0) == ((4, 60, 60, 3),)
    assert found.joined(0.2) == small
    assert covers(wide, small)
    assert not covers(wide, high)
