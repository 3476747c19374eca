"""A training script that does not use memfit. Run it as it is, or with any of these:

python examples/plain_script.py
memfit estimate examples/plain_script.py                # does it fit? where does the memory go?
memfit run --memory 40MiB examples/plain_script.py      # the same results in less memory
memfit run examples/plain_script.py --kill              # killed half-way, with the same result
memfit run --ranks 2 examples/plain_script.py           # two processes, one large batch
"""

import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np

SMALL = "EXAMPLE_SMALL" in os.environ


class KillOnce(keras.callbacks.Callback):
    """Ends the process in the middle of the second epoch, as a preemption would, but only once."""

    mark = Path(".killed-once")

    def on_train_batch_end(self, batch, logs=None):
        """Kills the process of the first attempt."""
        if self.model.optimizer.iterations == 12 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


keras.utils.set_random_seed(0)
layers = keras.layers
model = keras.Sequential(
    [
        keras.Input((32, 32, 3)),
        *(layers.Conv2D(16, 1 if SMALL else 3, padding="same", activation="relu") for _ in range(4)),
        layers.GlobalAveragePooling2D(),
        layers.Dense(4, activation="softmax"),
    ],
    name="plain",
)
model.compile("adam", "sparse_categorical_crossentropy")
labels = np.arange(512) % 4
images = np.random.default_rng(0).normal(size=(512, 32, 32, 3)) + labels[:, None, None, None] / 4
callbacks = [KillOnce()] if "--kill" in sys.argv else []
model.fit(images.astype("float32"), labels, batch_size=64, epochs=2, verbose=2, callbacks=callbacks)
KillOnce.mark.unlink(missing_ok=True)
