"""Trainings that have to end alike on one device and on several: each a model, and the arguments of `fit`."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import layers

Case = Callable[[], tuple[keras.Model, dict[str, Any]]]
SAMPLES, BATCH, EPOCHS = 48, 16, 2


def _data(samples: int = SAMPLES) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.normal(size=(samples, 6)), random.normal(size=(samples, 1))


def _dense(optimizer: Any = None, loss: Any = "mse", samples: int = SAMPLES, **fit: Any) -> Any:
    model = keras.Sequential([keras.Input((6,)), layers.Dense(5, "tanh"), layers.Dense(1)])
    model.compile(optimizer or keras.optimizers.SGD(0.1), loss, metrics=["mae"], weighted_metrics=["mse"])
    x, y = _data(samples)
    return model, {"x": x, "y": y, "batch_size": BATCH, "shuffle": False, **fit}


def _words(optimizer: Any) -> Any:
    """Masks whose lengths differ between the ranks' shares."""
    random = np.random.default_rng(1)
    x = random.integers(1, 9, size=(45, 5))
    x[np.arange(5)[None] >= random.integers(1, 6, size=(45, 1))] = 0
    inputs = keras.Input((5,), dtype="int32")
    states = layers.LSTM(3, return_sequences=True)(layers.Embedding(9, 4, mask_zero=True)(inputs))
    model = keras.Model(inputs, layers.Dense(1)(states))
    model.compile(optimizer, "mse")
    return model, {"x": x, "y": random.normal(size=(45, 5, 1)), "batch_size": 15, "shuffle": False}


class _Positions(layers.Layer):
    """Adds a row of a table to every position: the same rows whatever the samples are."""

    supports_masking = True

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(shape=(shape[1], shape[2]))

    def call(self, x: Any) -> Any:
        import tensorflow as tf

        return x + tf.gather(self.table.value, tf.range(tf.shape(x)[1]))


def _positions() -> Any:
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Flatten()(_Positions()(layers.Embedding(9, 4)(inputs)))
    model = keras.Model(inputs, layers.Dense(1)(x))
    model.compile(keras.optimizers.Adam(0.05), "mse")
    random = np.random.default_rng(1)
    x = random.integers(0, 9, size=(45, 5))
    return model, {"x": x, "y": random.normal(size=(45, 1)), "batch_size": 15, "shuffle": False}


class _Added(layers.Layer):
    def call(self, x: Any) -> Any:
        self.add_loss(0.3 * keras.ops.mean(keras.ops.square(x)))
        return x


def _outputs() -> Any:
    inputs = keras.Input((6,))
    hidden = _Added()(layers.Dense(5, "tanh", activity_regularizer="l2", kernel_regularizer="l2")(inputs))
    model = keras.Model(
        inputs, {"a": layers.Dense(1, name="a")(hidden), "b": layers.Dense(2, name="b")(hidden)}
    )
    model.compile(
        keras.optimizers.SGD(0.1),
        {"a": "mse", "b": "mae"},
        loss_weights={"a": 0.7, "b": 2.0},
        metrics={"a": ["mae"]},
    )
    x, y = _data(50)
    return model, {"x": x, "y": {"a": y, "b": np.hstack([y, -y])}, "batch_size": 15, "shuffle": False}


def dropout() -> Any:
    model = keras.Sequential([keras.Input((6,)), layers.Dense(7), layers.Dropout(0.4), layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.05), "mse")
    x, y = _data()
    return model, {"x": x, "y": y, "batch_size": 15, "shuffle": False}


def convolutions() -> Any:
    """Activations that are worth computing again, and dropout."""
    model = keras.Sequential([keras.Input((12, 12, 2))])
    for _ in range(4):
        model.add(layers.Conv2D(6, 3, padding="same", activation="tanh"))
        model.add(layers.Dropout(0.2))
    model.add(layers.GlobalAveragePooling2D())
    model.add(layers.Dense(1))
    model.compile(_SGD(0.1, global_clipnorm=0.1), "mse", metrics=["mae"])
    random = np.random.default_rng(0)
    x, y = random.normal(size=(30, 12, 12, 2)), random.normal(size=(30, 1))
    return model, {"x": x, "y": y, "batch_size": 15, "shuffle": False}


def statistics(synchronized: bool) -> Any:
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(5),
            layers.BatchNormalization(synchronized=synchronized),
            layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse")
    x, y = _data()
    return model, {"x": x, "y": y, "batch_size": 15, "shuffle": False}


def _weighted() -> Any:
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    return _dense(loss=loss, sample_weight=np.random.default_rng(2).uniform(size=SAMPLES))


def _classes() -> Any:
    model = keras.Sequential([keras.Input((6,)), layers.Dense(3, "softmax")])
    model.compile(keras.optimizers.Adam(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"])
    x, y = _data()
    labels = (y[:, 0] > 0).astype(int) + (y[:, 0] > 1)
    return model, {
        "x": x,
        "y": labels,
        "batch_size": 15,
        "class_weight": {0: 1.0, 1: 3.0, 2: 0.5},
        "shuffle": True,
    }


def _validated() -> Any:
    x, y = _data(35)
    return _dense(validation_data=(x, y, np.linspace(0, 1, 35)), validation_batch_size=17)


def _as_dataset() -> Any:
    import tensorflow as tf

    x, y = _data(50)
    model, _ = _dense()
    return model, {"x": tf.data.Dataset.from_tensor_slices((x, y)).shuffle(50, seed=3).batch(15)}


def decoded() -> Any:
    """A pipeline that ranks cut before its map: a last batch of 1 sample, and validation."""
    import tensorflow as tf

    def decode(x: Any, y: Any) -> Any:
        return tf.tanh(x), y

    x, y = _data(46)
    model, _ = _dense()
    whole = tf.data.Dataset.from_tensor_slices((x, y))
    some = whole.shuffle(46, seed=3).map(decode, num_parallel_calls=2)
    return model, {"x": some.batch(15).prefetch(1), "validation_data": whole.map(decode).batch(11)}


def _scaled() -> Any:
    return _dense(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)))


_SGD, _Adam = keras.optimizers.SGD, keras.optimizers.Adam
CASES: Mapping[str, Case] = {
    "SGD, metrics": _dense,
    "Adam": lambda: _dense(_Adam(0.05)),
    "a batch that does not divide": lambda: _dense(_Adam(0.05), batch_size=15),
    "a last batch of 1 sample: a rank has none": lambda: _dense(samples=49),
    "clipnorm": lambda: _dense(_SGD(0.1, clipnorm=0.05), batch_size=15),
    "global_clipnorm": lambda: _dense(_SGD(0.1, global_clipnorm=0.05), batch_size=15),
    "clipvalue": lambda: _dense(_SGD(0.1, clipvalue=0.01), batch_size=15),
    "a loss divided by the weights": _weighted,
    "class weights, shuffled": _classes,
    "masks, rows of an embedding, SGD": lambda: _words(_SGD(0.1)),
    "masks, rows of an embedding, Adam": lambda: _words(_Adam(0.05)),
    "rows that are the same for all samples": _positions,
    "several outputs, regularisers, add_loss": _outputs,
    "gradient accumulation": lambda: _dense(_SGD(0.1, gradient_accumulation_steps=2), batch_size=15),
    "EMA": lambda: _dense(_SGD(0.1, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=2)),
    "loss scaling": _scaled,
    "dropout: the masks of one device": dropout,
    "validation": _validated,
    "convolutions": convolutions,
    "a dataset, shuffled": _as_dataset,
    "a dataset, cut before it is decoded": decoded,
    "several steps per execution": lambda: _with_steps(2),
    "BatchNormalization(synchronized=True)": lambda: statistics(synchronized=True),
    "L2, AdamW": lambda: _dense(keras.optimizers.AdamW(0.05), batch_size=15),
}


def _with_steps(count: int) -> Any:
    model, fit = _dense(samples=50)
    model.compile(_SGD(0.1), "mse", metrics=["mae"], steps_per_execution=count)
    return model, fit


def _all_of_dense() -> Any:
    """Clipping, an odd batch, a last one of 1 sample, weights, EMA, validation, metrics."""
    optimizer = _Adam(
        0.05, global_clipnorm=0.05, use_ema=True, ema_overwrite_frequency=2, gradient_accumulation_steps=2
    )
    x, y = _data(35)
    weights = np.random.default_rng(2).uniform(size=46)
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    validation = {"validation_data": (x, y, np.linspace(0, 1, 35)), "validation_batch_size": 17}
    return _dense(optimizer, loss, 46, sample_weight=weights, batch_size=15, **validation)


def _all_of_rows() -> Any:
    """Masks whose lengths differ between ranks, rows of samples and rows that are there once, dropout."""
    random = np.random.default_rng(1)
    x = random.integers(1, 9, size=(45, 5))
    x[np.arange(5)[None] >= random.integers(1, 6, size=(45, 1))] = 0
    inputs = keras.Input((5,), dtype="int32")
    words = layers.Embedding(9, 4, mask_zero=True)(inputs)
    states = layers.SimpleRNN(3, return_sequences=True)(words)
    model = keras.Model(inputs, layers.Dense(1)(layers.Dropout(0.3)(_Positions()(states))))
    model.compile(_Adam(0.05, clipnorm=0.5), "mse", metrics=["mae"])
    return model, {"x": x, "y": random.normal(size=(45, 5, 1)), "batch_size": 15, "shuffle": True}


# What the tests train: everything above in few models, because each one has to be traced.
COMBINED: Mapping[str, Case] = {
    "clipping, weights, odd batches, a rank without samples, EMA, accumulation, validation": _all_of_dense,
    "masks, rows, dropout": _all_of_rows,
    "several outputs, regularisers, add_loss": _outputs,
    "a dataset, cut before it is decoded": decoded,
}


def train(case: Case, fit: Callable[..., Any], **more: Any) -> dict[str, Any]:
    """Trains a case in float64; returns all variables, and the logs of all epochs."""
    keras.config.set_floatx("float64")
    keras.utils.set_random_seed(7)
    model, arguments = case()
    history = fit(model, **arguments, epochs=EPOCHS, verbose=0, **more)
    states = [variable.numpy() for variable in (*model.variables, *model.optimizer.variables)]
    return {"states": states, "logs": history.history, "model": model, "arguments": arguments}
