"""Looking at somebody's data: what comes after the look is as it was, and shapes are known where they can be."""

import random
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from memfit.compat.tf_datasets import dataset_batch_size
from memfit.data.peeking import first_batch, peek_at_generator
from memfit.errors import InvalidInput
from memfit.estimation.recording.specs import Leaf, spec_of
from memfit.survival.fit_call import FitCall

X, Y = np.ones((20, 4), "float32"), np.ones((20, 1), "float32")


class Augmented(keras.utils.PyDataset):
    def __init__(self) -> None:
        super().__init__()
        self.generator, self.legacy = np.random.default_rng(1), np.random.RandomState(2)
        self.python = random.Random(3)

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        noise = np.random.normal() + self.generator.normal() + self.legacy.normal()
        return X[:8] + np.float32(noise + random.random() + self.python.random()), Y[:8]


def test_a_look_at_a_batch_draws_no_random_numbers() -> None:
    random.seed(4)
    np.random.seed(5)
    data = Augmented()
    seen, again = first_batch(data)[0], first_batch(data)[0]
    np.testing.assert_array_equal(seen, again)
    np.testing.assert_array_equal(seen, data[0][0])
    assert not np.array_equal(seen, data[0][0])


def test_a_generator_that_was_looked_at_gives_every_batch_once() -> None:
    first, rest = peek_at_generator(number for number in range(3))
    assert first == 0
    assert list(rest) == [0, 1, 2]


def test_the_batch_size_of_a_dataset_is_that_of_its_last_batch() -> None:
    data = tf.data.Dataset.from_tensor_slices((X, Y))
    assert dataset_batch_size(data.batch(6).map(lambda x, y: (x, y)).shuffle(3).prefetch(2)) == 6
    assert dataset_batch_size(data.batch(5, drop_remainder=True)) == 5
    assert dataset_batch_size(tf.data.Dataset.zip((data.batch(4), data.batch(4))).prefetch(1)) == 4
    assert dataset_batch_size(tf.data.Dataset.zip((data.batch(4), data.batch(8)))) is None
    assert dataset_batch_size(tf.data.Dataset.from_generator(lambda: iter(()), tf.float32)) is None


def _sequences() -> Iterator[tuple[Any, int]]:
    for length in (3, 5, 4, 2):
        yield np.ones(length, "int32"), 1


def _padded() -> Any:
    signature = (tf.TensorSpec((None,), tf.int32), tf.TensorSpec((), tf.int32))
    return tf.data.Dataset.from_generator(_sequences, output_signature=signature).padded_batch(2)


def _call(**arguments: Any) -> FitCall:
    return FitCall(keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]), arguments)


def test_the_batch_of_a_script_is_that_of_its_data() -> None:
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(16).prefetch(1)
    assert _call(x=dataset).batch_size == 16
    assert _call(x=dataset).data is dataset
    generator = _call(x=((X[:6], Y[:6]) for _ in range(2)))
    assert generator.batch_size == 6
    assert spec_of(generator.model, generator.data).structure == (
        Leaf((4,), "float32"),
        Leaf((1,), "float32"),
    )
    padded = _call(x=_padded())
    assert padded.batch_size == 2
    tokens = Leaf((5,), "int32", least=(1, 1, 1, 0, 0), largest=5 * (1,))
    labels = Leaf((), "int32", least=(1,), largest=(1,))
    assert spec_of(padded.model, padded.data).structure == (tokens, labels)
    assert _call(x=Augmented()).batch_size == 8
    assert _call(x=X, y=Y).batch_size == 32


def test_what_a_dataset_leaves_open_is_taken_from_the_model() -> None:
    inputs = {"tokens": keras.Input((7,), name="tokens"), "more": keras.Input((2,), name="more")}
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(list(inputs.values()))))
    spec = {"tokens": tf.TensorSpec((None, None)), "more": tf.TensorSpec(None)}
    data = tf.data.Dataset.from_generator(lambda: iter(()), output_signature=(spec, tf.TensorSpec((None,))))
    x, y = spec_of(model, data).structure
    assert x == {"tokens": Leaf((7,), "float32"), "more": Leaf((2,), "float32")}
    assert y == Leaf((), "float32")
    open_ended = keras.Sequential([keras.Input((None,)), keras.layers.Embedding(9, 2)])
    with pytest.raises(InvalidInput, match="longest batches"):
        spec_of(open_ended, _padded())
    with pytest.raises(InvalidInput, match="losing a batch"):
        spec_of(open_ended, (number for number in range(3)))
