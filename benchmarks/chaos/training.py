"""One training of the chaos benchmark, as a script that knows nothing of memfit.

    python training.py NAME OUT DROPOUT

It trains a small model and writes everything that can differ to OUT: weights, optimizer, metrics, history, and the
loss of every batch. Faults happen to it where `faults/` in its directory says so (see `faults.py`).
"""

import pickle
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from faults import Faults

layers = keras.layers
RANDOM = np.random.default_rng(0)


def images(count: int, gentle: bool = False) -> tuple[Any, Any]:
    """Noise with random labels; with `gentle`, noise that is brighter for higher labels.

    To learn noise is chaos: with Adam, a change of the first weights by 1e-7 moved the last ones by half. Where
    a result may differ by rounding, only a gentle training can tell rounding from an error (seen: 2e-6).
    """
    x, y = RANDOM.normal(size=(count, 24, 24, 3)).astype("float32"), RANDOM.integers(0, 5, count)
    return (x + (y[:, None, None, None] - 2).astype("float32") if gentle else x), y


def convolutional(callbacks: list[Any], dropout: float) -> tuple[Any, list[Any]]:
    """BatchNormalization, dropout, Adam with a schedule, arrays in Keras's own seeded order."""
    parts: list[Any] = [keras.Input((24, 24, 3))]
    for filters in (16, 32):
        # A bias before a BatchNormalization has a gradient of nothing but rounding, which Adam makes steps of.
        parts += [layers.Conv2D(filters, 3, padding="same", use_bias=False), layers.BatchNormalization()]
        parts += [layers.ReLU(), layers.MaxPooling2D()]
    parts += [layers.GlobalAveragePooling2D(), layers.Dropout(dropout), layers.Dense(5)]
    model = keras.Sequential(parts)
    gentle = dropout == 0
    rate = keras.optimizers.schedules.ExponentialDecay(0.002 if gentle else 0.01, 20, 0.8)
    optimizer = keras.optimizers.SGD(rate, momentum=0.9) if gentle else keras.optimizers.Adam(rate)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    x, y = images(640, gentle)
    history = model.fit(x, y, batch_size=16, epochs=4, validation_split=0.2, verbose=0, callbacks=callbacks)
    return model, [history]


def attention(callbacks: list[Any], dropout: float) -> tuple[Any, list[Any]]:
    """Attention, LayerNormalization, AdamW with EMA and clipping, a shuffled tf.data pipeline."""
    inputs = keras.Input((24, 24, 3))
    x = layers.Reshape((36, 32))(layers.Conv2D(32, 4, strides=4)(inputs))
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        # The bias of its keys has a gradient of nothing but rounding, too.
        heads = layers.MultiHeadAttention(2, 16, dropout=dropout, use_bias=False)
        x = layers.Add()([x, heads(y, y)])
        x = layers.Add()([x, layers.Dense(32, activation="gelu")(layers.LayerNormalization()(x))])
    outputs = layers.Dense(5, activation="softmax")(layers.GlobalAveragePooling1D()(x))
    model = keras.Model(inputs, outputs)
    optimizer = keras.optimizers.AdamW(3e-3, use_ema=True, ema_momentum=0.9, global_clipnorm=1.0)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    data = tf.data.Dataset.from_tensor_slices(images(512)).shuffle(200).batch(16).prefetch(2)
    validation = tf.data.Dataset.from_tensor_slices(images(64)).batch(16)
    history = model.fit(
        data, epochs=4, validation_data=validation, verbose=0, callbacks=callbacks, shuffle=False
    )
    return model, [history]


def recurrent(callbacks: list[Any], dropout: float) -> tuple[Any, list[Any]]:
    """An embedding with masks, a GRU, RMSprop, early stopping and a plateau; arrays without a seed."""
    parts = [keras.Input((20,), dtype="int32"), layers.Embedding(50, 16, mask_zero=True)]
    parts += [layers.GRU(24, dropout=dropout), layers.Dense(1)]
    model = keras.Sequential(parts)
    model.compile(keras.optimizers.RMSprop(0.01), "mse", metrics=["mae"])
    x, y = np.random.randint(0, 50, (640, 20)), np.random.normal(size=(640, 1))
    more = [
        keras.callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=0.5),
    ]
    history = model.fit(
        x, y, batch_size=16, epochs=4, validation_split=0.2, verbose=0, callbacks=[*callbacks, *more]
    )
    return model, [history]


def two_stages(callbacks: list[Any], dropout: float) -> tuple[Any, list[Any]]:
    """Two calls of fit with other optimizers, layers frozen in the first; momentum, BatchNormalization."""
    gentle = dropout == 0
    fastest = 0.002 if gentle else 0.05
    head = [layers.Dense(32, activation="relu"), layers.Dropout(dropout), layers.Dense(5)]
    base = keras.Sequential(
        [
            keras.Input((24, 24, 3)),
            layers.Conv2D(16, 3, strides=2, use_bias=not gentle),
            layers.BatchNormalization(),
            layers.ReLU(),
        ]
    )
    base.trainable = False
    model = keras.Sequential([base, layers.GlobalAveragePooling2D(), *head])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(fastest, momentum=0.9, nesterov=True), loss, metrics=["accuracy"])
    x, y = images(480, gentle)
    first = model.fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=callbacks)
    base.trainable = True
    rate = keras.optimizers.schedules.CosineDecay(fastest, 60)
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), loss, metrics=["accuracy"])
    second = model.fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=callbacks, validation_split=0.1)
    return model, [first, second]


TRAININGS = {
    "convolutional": convolutional,
    "attention": attention,
    "recurrent": recurrent,
    "two stages": two_stages,
}


def main() -> None:
    """Trains, and writes what came out."""
    name, out, dropout = sys.argv[1:]
    if name in ("convolutional", "two stages"):
        keras.utils.set_random_seed(1)
    faults = Faults()
    model, histories = TRAININGS[name]([faults], float(dropout))
    predicted = faults.predict(model)
    result = {
        "weights": [variable.numpy() for variable in model.variables],
        "optimizer": [variable.numpy() for variable in model.optimizer.variables],
        "metrics": [variable.numpy() for metric in model.metrics for variable in metric.variables],
        "history": [history.history for history in histories],
        "batches": faults.batches,
        "predicted": predicted,
    }
    Path(out).write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    main()
