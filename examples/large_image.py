"""Segment an image that does not fit as a whole: exact tiles, not a blend of overlapping predictions."""

import os

import memfit

memfit.configure(memory="400MiB")

import keras
import numpy as np

SIDE = 256 if "EXAMPLE_SMALL" in os.environ else 1500
keras.utils.set_random_seed(0)
layers = keras.layers

inputs = keras.Input((None, None, 1))
x = skip = layers.Conv2D(16, 3, padding="same", activation="relu")(inputs)
x = layers.Conv2D(16, 3, padding="same", activation="relu")(layers.MaxPooling2D()(x))
x = layers.Concatenate()([layers.UpSampling2D()(x), skip])
unet = keras.Model(inputs, layers.Conv2D(1, 3, padding="same", activation="sigmoid")(x))

image = np.random.default_rng(0).random((1, SIDE, SIDE, 1), "float32")
events: list[object] = []
mask = memfit.predict(
    unet, image, tiles=128, events=events, verbose=0
)  # tiles="auto": what fits the free memory
print(f"{SIDE}x{SIDE} in tiles of 128x128: mask {mask.shape}, {len(events)} events")

corner = unet.predict(image[:, :200, :200], verbose=0)[:, :150, :150]
print(
    "largest difference from the untiled prediction of a corner:",
    float(np.abs(mask[:, :150, :150] - corner).max()),
)
