"""Ask before the run: the peak of a training, where the memory goes, the largest batch, and an HTML page of it."""

import os

import memfit

memfit.configure(memory="400MiB")

import keras

SMALL = "EXAMPLE_SMALL" in os.environ
SIZE = 32 if SMALL else 96
layers = keras.layers
inputs = keras.Input((SIZE, SIZE, 3))
x = layers.Conv2D(16, 3, strides=2, padding="same", activation="relu")(inputs)
for filters in (32, 64):
    x = layers.BatchNormalization()(layers.Conv2D(filters, 3, padding="same", activation="relu")(x))
    x = layers.MaxPooling2D()(x)
x = layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling2D()(x))
model = keras.Model(inputs, x, name="small_cnn")
model.compile("adam", "sparse_categorical_crossentropy")

est = memfit.estimate(model, batch_size=64)  # a few small steps in another process; nothing is trained
print(est)

print("batch 128 would peak at", est.at(128).peak)
for memory in ("128MiB", "256MiB"):
    print(f"batch 64 in {memory}:", est.fits(memory).why)
if not SMALL:  # other batch sizes are recorded as far as it takes
    print("largest batch in 1 GiB:", est.max_batch("1GiB"))
print("largest tensors at the peak:")
for tensor in est.top(3):
    print(f"  {tensor.bytes}  {tensor.kind}, {tensor.layer}")

print("the step over time:", memfit.plot(est, "will-it-fit.html", memory="128MiB"))
