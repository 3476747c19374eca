"""Canaries of what memfit uses of Keras's data adapters beside its public face."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from compat.canaries import canary
from memfit.compat import keras_data

_ADAPTER = "keras.src.trainers.data_adapters.array_data_adapter"
_SLICING = "keras.src.trainers.data_adapters.array_slicing"


@canary("keras_data.batches_itself", f"{_ADAPTER}.can_convert_arrays", of="keras")
def test_arrays_do_not_batch_themselves_and_datasets_do():
    kinds = [np.ones(3), tf.data.Dataset.range(3), (batch for batch in ()), None]
    assert [keras_data.batches_itself(data) for data in kinds] == [False, True, True, False]


@pytest.fixture
def model() -> keras.Model:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile()
    return model


@canary("keras_data.epoch_iterator", "keras.src.backend.tensorflow.trainer.TFEpochIterator", of="keras")
def test_keras_reads_any_data_as_batches(model):
    epochs = keras_data.epoch_iterator(model, np.ones((5, 1)), 2, None)
    assert [tf.nest.flatten(next(iterator))[0].shape[0] for _, _, iterator in epochs] == [2, 2, 1]


@canary("keras_data.next_batches", "Model.steps_per_execution", of="keras")
def test_the_batches_of_one_execution_are_taken_together(model):
    model.steps_per_execution = 2
    batches = iter(tf.data.Dataset.range(3))
    assert [len(keras_data.next_batches(model, batches)) for _ in range(2)] == [2, 1]
    with pytest.raises(StopIteration):
        keras_data.next_batches(model, batches)


@canary("keras_data.split_off_validation", f"{_SLICING}.train_validation_split", of="keras")
def test_the_last_samples_are_split_off():
    train, validation = keras_data.split_off_validation((np.arange(10), None), 0.2)
    assert (list(train[0]), list(validation[0])) == (list(range(8)), [8, 9])


@canary(
    "keras_data.array_dataset", f"{_ADAPTER}.ArrayDataAdapter", "ArrayDataAdapter.get_tf_dataset", of="keras"
)
def test_arrays_become_the_dataset_that_fit_makes_of_them():
    dataset = keras_data.array_dataset(np.arange(3), np.array([0, 1, 1]), None, 2, False, {0: 1.0, 1: 4.0})
    assert [weights.numpy().tolist() for _, _, weights in dataset] == [[1, 4], [4]]


@canary(
    "keras_data.arrays_of_fit", "ArrayDataAdapter._inputs", f"{_SLICING}.convert_to_sliceable", of="keras"
)
def test_arrays_are_what_fit_makes_of_them_before_it_cuts():
    x, y, weights = keras_data.arrays_of_fit(np.ones(3, "float64"), np.array([0, 1, 1]), None, {0: 1, 1: 4})
    assert (x.dtype, y.tolist(), weights.tolist()) == (np.float32, [0, 1, 1], [1, 4, 4])


@canary("keras_data.is_dataset", "tf.data.Dataset", of="tensorflow")
def test_a_dataset_is_told_from_arrays():
    assert keras_data.is_dataset(tf.data.Dataset.range(1))
    assert not keras_data.is_dataset(np.ones(1))
