"""Ranks read their shares alone, and together just what one device reads."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import memfit
from memfit.data.shares import find_cut
from memfit.scaling.reading import reading_shares


def _batches(data, rank: int, count: int) -> tuple[list[list[int]], set[str], list[str]]:
    arguments = {"x": data, "validation_data": None}
    with reading_shares(arguments, rank, count) as reading:
        return [batch.numpy().tolist() for batch in data], reading.shares, reading.remarks


@pytest.mark.parametrize("count", [2, 3])
def test_the_shares_of_all_ranks_are_the_batches_of_one_device(count: int) -> None:
    whole = [
        batch.numpy().tolist() for batch in memfit.arrays(np.arange(23), batch_size=7, shuffle=True, seed=5)
    ]
    ranks = []
    for rank in range(count):
        data = memfit.arrays(np.arange(23), batch_size=7, shuffle=True, seed=5)
        batches, shared, remarks = _batches(data, rank, count)
        assert shared == ({"training"} if count == 2 else set())  # the last batch has 2 samples
        assert ["last batch" in remark for remark in remarks] == [True] * (count - 2)
        ranks.append(batches)
    if count == 2:
        assert [[*first, *second] for first, second in zip(*ranks, strict=True)] == whole
        assert {len(batch) for batch in ranks[0]} == {4, 1}
    else:
        assert all(batches == whole for batches in ranks)  # the step takes the share


def test_rows_of_other_ranks_are_not_read() -> None:
    class Rows:
        shape, dtype = (20, 2), np.dtype("float32")

        def __init__(self) -> None:
            self.read: list[int] = []

        def __getitem__(self, numbers):
            self.read.extend(np.atleast_1d(numbers).tolist())
            return np.zeros((len(numbers), 2), "float32")

    rows = Rows()
    data = memfit.arrays(rows, batch_size=10)
    rows.read.clear()
    with reading_shares({"x": data, "validation_data": None}, 1, 2):
        assert len(list(data)) == 2
    assert sorted(rows.read) == [5, 6, 7, 8, 9, 15, 16, 17, 18, 19]


def _decode(number, label):
    return {"pixels": tf.fill([3], number)}, label * 2


_ELEMENTS = tf.data.Dataset.from_tensor_slices((np.arange(23.0), np.arange(23)))
_PIPELINES = {
    "shuffled, decoded in parallel": _ELEMENTS.shuffle(8, seed=1, reshuffle_each_iteration=False)
    .map(_decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    .prefetch(2)
    .batch(7)
    .prefetch(tf.data.AUTOTUNE),
    "a last batch of 1, of unknown length": _ELEMENTS.filter(lambda *_: True).map(_decode).batch(11),
    "without the last batch": _ELEMENTS.map(_decode).batch(5, drop_remainder=True, num_parallel_calls=2),
    "repeated before and behind": _ELEMENTS.repeat(2).map(_decode).map(lambda x, y: x).batch(9).repeat(2),
    "a part of it": _ELEMENTS.map(lambda x, y: [x, y]).batch(4).skip(1).take(3),
    "a tuple of one": tf.data.Dataset.from_tensor_slices((np.arange(23.0),)).batch(4),
    "a tuple in a tuple": tf.data.Dataset.from_tensor_slices(((np.arange(9.0), np.arange(9)),))
    .map(lambda pair: pair[0] + tf.cast(pair[1], "float64"))
    .batch(4),
    "a dictionary": tf.data.Dataset.from_tensor_slices({"x": np.arange(23.0)}).batch(4),
    "ragged": tf.data.Dataset.range(11)
    .map(lambda n: tf.RaggedTensor.from_row_lengths(tf.range(n), [n]))
    .batch(4),
}


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("name", _PIPELINES)
def test_a_pipeline_is_cut_into_shares_of_the_same_batches(name: str, count: int) -> None:
    dataset = _PIPELINES[name]
    ranks = [list(find_cut(dataset).share(rank, count)) for rank in range(count)]
    for shares, expected in zip(zip(*ranks, strict=True), dataset, strict=True):
        joined = tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *shares)
        tf.nest.assert_same_structure(joined, expected)
        for one, other in zip(tf.nest.flatten(joined), tf.nest.flatten(expected), strict=True):
            assert _listed(one) == _listed(other)


def _listed(tensor):
    return tensor.to_list() if isinstance(tensor, tf.RaggedTensor) else tensor.numpy().tolist()


def test_what_other_ranks_decode_is_not_decoded() -> None:
    decoded: list[int] = []

    def decode(number):
        decoded.append(int(number))
        return np.float32(number)

    data = tf.data.Dataset.range(20).map(
        lambda number: tf.numpy_function(decode, [number], tf.float32), num_parallel_calls=2
    )
    assert [len(batch) for batch in find_cut(data.batch(8)).share(1, 2)] == [4, 4, 2]
    assert sorted(decoded) == [4, 5, 6, 7, 12, 13, 14, 15, 18, 19]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda data: data.batch(4).map(lambda x, y: (x / 2, y)), "behind its batch"),
        (
            lambda data: data.map(lambda x, y: (x + tf.random.uniform([], seed=1, dtype="float64"), y)).batch(
                4
            ),
            "random numbers",
        ),
        (
            lambda data: data.map(lambda x, y: tf.py_function(min, [x, y], tf.float64)).batch(4),
            "calls Python",
        ),
        (lambda data: data.padded_batch(4), "paddedbatch"),
        (lambda data: data.map(_decode).batch(4).cache(), "cache"),
    ],
)
def test_what_cannot_be_cut_is_read_whole_and_its_cost_said(make: Callable[[Any], Any], reason: str) -> None:
    with reading_shares({"x": make(_ELEMENTS), "validation_data": None}, 0, 4) as reading:
        assert not reading.shares
        assert "decoding is done 4 times" in reading.remarks[0]
        assert reason in reading.remarks[0]


def test_what_every_rank_reads_before_the_cut_is_said() -> None:
    data = _ELEMENTS.filter(lambda *_: True).map(_decode).batch(4)
    with reading_shares({"x": data, "validation_data": None}, 0, 2) as reading:
        assert reading.shares == {"training"}
        assert "all of the training data up to its filter" in reading.remarks[0]


def _write_image(file, value: int) -> None:
    tf.io.write_file(str(file), tf.io.encode_png(tf.fill((8, 8, 3), tf.constant(value, tf.uint8))))


def _brighten(image, rng):
    return np.clip(image + rng.integers(0, 50), 0, 255).astype("uint8")


def test_ranks_augment_their_shares_as_one_device_does(tmp_path) -> None:
    for number in range(7):
        _write_image(tmp_path / f"{number}.png", 20 * number)
    paths = sorted(map(str, tmp_path.glob("*.png")))
    augment = [keras.layers.RandomFlip(), keras.layers.RandomBrightness(0.3), _brighten]

    def read(rank: int, count: int) -> list[Any]:
        data = memfit.images(paths, list(range(7)), size=(8, 8), batch_size=5, augment=augment, cache=None)
        with reading_shares({"x": data, "validation_data": None}, rank, count) as reading:
            assert (reading.shares, reading.remarks) == ({"training"}, [])
            return [(pixels.numpy(), labels.numpy()) for pixels, labels in data]

    whole, first, second = read(0, 1), read(0, 2), read(1, 2)
    assert [len(pixels) for pixels, _ in first] == [3, 1]
    for expected, *shares in zip(whole, first, second, strict=True):
        for part, one in enumerate(expected):
            np.testing.assert_array_equal(np.concatenate([share[part] for share in shares]), one)


def test_augmentation_that_mixes_samples_reads_whole_batches(tmp_path) -> None:
    _write_image(tmp_path / "a.png", 0)
    paths, labels = [str(tmp_path / "a.png")] * 4, np.eye(4, dtype="float32")
    data = memfit.images(paths, labels, size=(8, 8), batch_size=4, augment=[keras.layers.MixUp()])
    with reading_shares({"x": data, "validation_data": None}, 0, 2) as reading:
        assert not reading.shares
        assert "may mix the samples" in reading.remarks[0]
