"""An estimate of data whose shapes vary is that of its worst batch, which it names."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import memfit
from memfit import InvalidInput
from memfit.estimation.recording.specs import bytes_per_sample, spec_of
from memfit.estimation.worst_batch import look_where_needed


class Lengths(keras.utils.PyDataset):
    """Batches of several lengths, one of them much longer."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        return np.ones((4, 900 if number == 7 else 20 + number), "int32"), np.zeros((4, 1), "float32")


@pytest.fixture(scope="module")
def model() -> keras.Model:
    inputs = keras.Input((None,), dtype="int32")
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(20, 64)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(x))
    model.compile("sgd", "mse")
    return model


def test_the_worst_batch_is_named_and_estimated(model: keras.Model) -> None:
    found = memfit.estimate(model, data=Lengths())
    assert found.batch_size == 4
    assert found.worst is not None
    assert (found.worst.index, found.worst.shape) == (7, ((4, 900), (4, 1)))
    assert "worst batch: 7 of 12, (4, 900), (4, 1); looked at all 12 batches in " in repr(found)
    assert found.to_json()["worst_batch"]["index"] == 7
    assert found.peak > 4 * 900 * 64 * 4  # an embedding of that batch alone


def test_a_batch_size_can_be_left_out_only_where_the_data_says_it(model: keras.Model) -> None:
    with pytest.raises(InvalidInput, match="can be left out only where the data comes in batches"):
        memfit.estimate(model, data=(np.ones((4, 10), "int32"), np.ones((4, 1))))
    with pytest.raises(InvalidInput, match="A generator cannot be looked at without losing its batches"):
        memfit.estimate(model, data=(each for each in []))


def test_a_pipeline_of_zipped_batches_is_recorded_with_the_samples_of_each() -> None:
    many, few = (
        tf.data.Dataset.from_tensor_slices(np.ones((3 * size, 4), "float32")).batch(size) for size in (64, 16)
    )
    model = keras.Sequential([keras.layers.Dense(1)])
    found = look_where_needed(model, tf.data.Dataset.zip((many, few)))
    assert found is not None
    for shape in found.largest():
        spec = spec_of(model, found.like(shape))
        assert [part.shape for part in spec.batch(32)] == [(32, 4), (8, 4)]
        assert [tuple(part.shape) for part in spec.tensor_specs(None)] == [(None, 4), (None, 4)]
        assert bytes_per_sample(spec) == [16, 4]
