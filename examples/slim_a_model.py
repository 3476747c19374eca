"""Smaller networks for the same job, compared: the training memory of each, and how close it is to the original."""

import os

import memfit

memfit.configure(memory="400MiB")

import keras
import numpy as np

SMALL = "EXAMPLE_SMALL" in os.environ
keras.utils.set_random_seed(0)
layers = keras.layers
inputs = keras.Input((24, 24, 3))
x = layers.Conv2D(16, 3, padding="same", activation="relu")(inputs)
x = layers.Conv2D(32, 3, padding="same", activation="relu")(layers.MaxPooling2D()(x))
x = layers.Dense(64, activation="relu")(layers.GlobalAveragePooling2D()(x))
model = keras.Model(inputs, layers.Dense(4, activation="softmax")(x))
model.compile("adam", "sparse_categorical_crossentropy")

labels = np.arange(128) % 4
images = (np.random.default_rng(0).normal(size=(128, 24, 24, 3)) + labels[:, None, None, None] / 4).astype(
    "float32"
)
model.fit(images, labels, epochs=2, verbose=0)

if not SMALL:  # every variant is built and recorded: half a minute
    print(memfit.slim(model, batch_size=64, memory="16MiB", data=(images, labels)))

narrow = memfit.slim(model, "narrow", 0.5)  # one of them: compiled as the original, weights carried over
print(f"{model.count_params():,} weights become {narrow.count_params():,}")
narrow.fit(images, labels, epochs=2, verbose=2)
