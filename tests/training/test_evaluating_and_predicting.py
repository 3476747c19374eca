"""Evaluation and prediction in parts give what stock Keras gives, and prediction can leave the memory."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import memfit
from training.parity import Diary

RNG = np.random.default_rng(2)
IDS = RNG.integers(0, 4, (50, 6))
TAGS = RNG.integers(0, 3, (50, 6))
TARGETS = {"tag": TAGS, "last": RNG.normal(size=(50, 4)).astype("float32")}
WEIGHTS = {"tag": RNG.uniform(size=(50, 6)).astype("float32"), "last": np.ones(50, "float32")}


@pytest.fixture(scope="module")
def tagger() -> keras.Model:
    inputs = keras.Input((6,), dtype="int32")
    hidden = layers.LSTM(4, return_sequences=True)(layers.Embedding(4, 3, mask_zero=True)(inputs))
    model = keras.Model(
        inputs,
        {"tag": layers.Dense(3, activation="softmax", name="tag")(hidden), "last": hidden[:, -1]},
    )
    losses = {"tag": "sparse_categorical_crossentropy", "last": "mse"}
    model.compile("sgd", losses, weighted_metrics={"tag": ["accuracy"]})
    return model


@pytest.mark.parametrize("batch_size", [32, 50])
def test_evaluation_in_parts_has_the_loss_and_metrics_of_the_batches(
    tagger: keras.Model, batch_size: int
) -> None:
    data = {"x": IDS, "y": TARGETS, "sample_weight": WEIGHTS, "batch_size": batch_size}
    stock = tagger.evaluate(**data, verbose=0, return_dict=True)
    compiled = tagger.test_function
    ours = memfit.evaluate(tagger, **data, verbose=0, return_dict=True, micro_batch=7)
    assert list(ours) == list(stock)
    np.testing.assert_allclose(list(ours.values()), list(stock.values()), rtol=1e-5)
    assert tagger.test_function is compiled


def test_without_out_predictions_are_keras_s(tagger: keras.Model) -> None:
    stock = tagger.predict(IDS, verbose=0)
    for micro_batch in (None, 7):
        ours = memfit.predict(tagger, IDS, verbose=0, micro_batch=micro_batch)
        for name in ("tag", "last"):
            np.testing.assert_allclose(ours[name], stock[name], rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras says so at the end of any generator
@pytest.mark.parametrize("source", ["array", "dataset", "generator"])
def test_predictions_are_streamed_to_one_file_per_output(
    tagger: keras.Model, tmp_path: Path, source: str
) -> None:
    data: Any = {
        "array": IDS,
        "dataset": tf.data.Dataset.from_tensor_slices(IDS).batch(20),
        "generator": ((IDS[i : i + 10],) for i in range(0, 50, 10)),
    }[source]
    stock = tagger.predict(IDS, verbose=0)
    diary = Diary()
    ours = memfit.predict(
        tagger, data, verbose=0, micro_batch=8, out=tmp_path / "scores.npy", callbacks=[diary]
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["scores.last.npy", "scores.tag.npy"]
    for name in ("tag", "last"):
        assert isinstance(ours[name], np.memmap)
        np.testing.assert_allclose(
            np.load(tmp_path / f"scores.{name}.npy"), stock[name], rtol=1e-5, atol=1e-6
        )
    calls = [name for name, _ in diary.pages]
    assert calls.count("on_predict_batch_end") == {"array": 2, "dataset": 3, "generator": 5}[source]
    assert calls[-1] == "on_predict_end"


def test_a_half_written_file_does_not_get_the_name_of_a_whole_one(
    tagger: keras.Model, tmp_path: Path
) -> None:
    class Fail(keras.callbacks.Callback):
        def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 1:
                raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        memfit.predict(tagger, IDS, verbose=0, out=tmp_path / "scores.npy", callbacks=[Fail()])
    assert list(tmp_path.iterdir()) == []


def test_bad_input_is_refused(tagger: keras.Model, tmp_path: Path) -> None:
    with pytest.raises(memfit.InvalidInput, match=r"\.npy"):
        memfit.predict(tagger, IDS, out=tmp_path / "scores.csv")
    with pytest.raises(memfit.InvalidInput, match="existing directory"):
        memfit.predict(tagger, IDS, out=tmp_path / "nowhere" / "scores.npy")
    with pytest.raises(memfit.InvalidInput, match="at least 1"):
        memfit.evaluate(tagger, IDS, TARGETS, micro_batch=-3)
    with pytest.raises(memfit.InvalidInput, match="at least one sample"):
        memfit.predict(tagger, IDS[:0])
