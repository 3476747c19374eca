"""Train in less memory than stock Keras needs, with the same results.

The arena of 400 MiB stands in for a GPU: TensorFlow's own allocator on the CPU, with a limit.
"""

import os

import memfit

memfit.configure(memory="400MiB")  # before TensorFlow is imported; on a GPU a limit, here an arena

import keras
import numpy as np

SMALL = "EXAMPLE_SMALL" in os.environ
BATCH, SIZE = (32, 32) if SMALL else (64, 64)

keras.utils.set_random_seed(0)
layers = keras.layers
model = keras.Sequential(
    [
        keras.Input((SIZE, SIZE, 3)),
        *(
            layers.Conv2D(32, 1 if SMALL else 3, padding="same", activation="relu")
            for _ in range(2 if SMALL else 5)
        ),
        layers.GlobalAveragePooling2D(),
        layers.Dense(4, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
labels = np.arange(4 * BATCH) % 4
noise = np.random.default_rng(0).normal(size=(len(labels), SIZE, SIZE, 3))
images = (noise + labels[:, None, None, None] / 4).astype("float32")

# Every argument of Keras's fit works. memory= is what training may take, allow= how far a change may go.
memory = "100MiB" if SMALL else "120MiB"
history = memfit.fit(
    model, images, labels, batch_size=BATCH, epochs=2, verbose=2, memory=memory, allow="exact"
)

print(history.memory)  # the plan, predicted and measured peak, what happened
