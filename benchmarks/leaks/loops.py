"""What the loops share: turns for as long as wanted, a small network, batches."""

import time
from collections.abc import Iterator
from typing import Any


def turns(seconds: float) -> Iterator[int]:
    """Counts until that much processor time is over, so that a busy machine changes nothing."""
    end, number = time.process_time() + seconds, 0
    while time.process_time() < end:
        yield number
        number += 1


def network(features: int = 64, outputs: int = 16) -> Any:
    """Returns a small compiled network."""
    import keras

    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((features,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(outputs)]
    )
    model.compile("adam", "mse")
    return model


def batch(rows: int = 256, features: int = 64, outputs: int = 16) -> tuple[Any, Any]:
    """Returns samples and labels."""
    import numpy as np

    drawn = np.random.default_rng(0)
    x, y = drawn.normal(size=(rows, features)), drawn.normal(size=(rows, outputs))
    return x.astype("float32"), y.astype("float32")


def epochs_of(seconds: float) -> Any:
    """Returns a callback that ends `fit` when the time is over; `fit` is given more epochs than it will take."""
    import keras

    end = time.process_time() + seconds

    class Until(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if time.process_time() > end:
                self.model.stop_training = True

    return Until()
