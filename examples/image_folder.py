"""Feed a folder of photos within a memory budget, and let the linter look at a pipeline written by hand."""

import os
import tempfile
from pathlib import Path

import memfit

memfit.configure(memory="400MiB")

import keras
import numpy as np
import tensorflow as tf

COUNT = 12 if "EXAMPLE_SMALL" in os.environ else 100
random = np.random.default_rng(0)
folder = Path(tempfile.mkdtemp(), "photos")
for kind in ("cats", "dogs"):
    for number in range(COUNT):
        photo = random.integers(0, 255, (96, 128, 3), "uint8")
        (folder / kind).mkdir(parents=True, exist_ok=True)
        tf.io.write_file(str(folder / kind / f"{number}.jpg"), tf.io.encode_jpeg(photo))

train, validation = memfit.images(
    folder,
    size=(64, 64),
    batch_size=8,
    validation_split=0.25,
    seed=1,
    augment=[keras.layers.RandomFlip()],  # after the cache, never in validation
    memory="64MiB",  # what the pipeline may take of the host
)
print(train.memfit)  # what was decided: cache, order, batches ahead

layers = keras.layers
model = keras.Sequential(
    [layers.Rescaling(1 / 255), layers.Conv2D(8, 3, 2), layers.GlobalAveragePooling2D(), layers.Dense(2)]
)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(train, validation_data=validation, epochs=2, verbose=2)  # plain datasets: any fit takes them

# Augmentation before the cache is frozen after the first epoch; the shuffle buffer holds decoded images.
images = tf.data.Dataset.from_tensor_slices(random.random((64, 64, 64, 3), "float32"))
by_hand = images.map(tf.image.random_flip_left_right).cache().shuffle(50).batch(8)
print(memfit.lint(by_hand))
