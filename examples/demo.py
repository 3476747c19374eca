"""The main job, on any machine: a real Keras model in a small arena, as stock Keras trains it and as memfit does.

Run it with `make demo`. It needs no GPU: the arena is TensorFlow's own allocator with a cap.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import memfit

MEMORY = memfit.Size("320MiB")
BATCH = 64
STEPS = 2
OUTPUT = Path("demo-output")


def build_model_and_data() -> tuple[Any, Any, Any]:
    """A convolutional network with BatchNormalization and dropout, and images with something to learn in them."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    layers = keras.layers
    inputs = keras.Input((64, 64, 3))
    x = layers.Conv2D(32, 3, strides=2, padding="same", use_bias=False)(inputs)
    for filters in (64, 64, 128, 128):
        skip = layers.Conv2D(filters, 1, strides=1, use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.Add()([skip, layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)])
    x = layers.Dropout(0.2)(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, layers.Dense(4, activation="softmax")(x))
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "sparse_categorical_crossentropy")
    random = np.random.default_rng(0)
    labels = random.integers(0, 4, BATCH * STEPS)
    images = random.normal(size=(len(labels), 64, 64, 3)) + labels[:, None, None, None] * 0.25
    return model, images.astype("float32"), labels


def train_stock() -> list[float]:
    """Trains as stock Keras does and returns the losses of the epochs."""
    model, x, y = build_model_and_data()
    history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    losses: list[float] = history.history["loss"]
    return losses


def fit() -> tuple[list[float], Any]:
    """Trains with memfit and returns the losses and the run."""
    model, x, y = build_model_and_data()
    history = memfit.fit(
        model, x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, memory=MEMORY, allow="exact"
    )
    return history.history["loss"], history.memory


def write_report() -> Path:
    """Writes the run as one HTML page: predicted and measured memory, the plan, what happened."""
    page = OUTPUT / "report.html"
    command = [sys.executable, "-m", "memfit", "report", "--output", str(page), "--force"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return page


def main() -> None:
    """Shows the whole: the OOM of stock Keras, the plan, the training, the figures."""
    # The processes below inherit these: TensorFlow's log would hide the rest, and records of runs go to the output.
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "MEMFIT_RUNS": str(OUTPUT.resolve() / "runs")}
    print(f"A residual network, batch {BATCH}, in an arena of {MEMORY}.\n")
    print("1. Stock Keras (TensorFlow waits 10 s before it gives up) ...", flush=True)
    try:
        memfit.isolated(train_stock, memory=MEMORY)
        print("   It fitted after all.")
    except Exception as error:
        sentence = next((line for line in str(error).splitlines() if "OOM" in line), str(error))
        print(f"   {type(error).__name__}: {sentence.strip()[:88]} ...\n")
    print(f"2. memfit.fit(model, x, y, batch_size={BATCH}, memory='320MiB', allow='exact') ...", flush=True)
    losses, record = memfit.isolated(fit, memory=MEMORY)
    print("   " + repr(record).replace("\n", "\n   ") + "\n")
    print("3. The same training in stock Keras, with all the memory it wants ...", flush=True)
    expected = memfit.isolated(train_stock, memory="4GiB")
    print(f"   loss of the epochs, stock:  {'  '.join(f'{loss:.6f}' for loss in expected)}")
    print(f"   loss of the epochs, memfit: {'  '.join(f'{loss:.6f}' for loss in losses)}\n")
    print(f"The whole run as a page: {write_report()}")


if __name__ == "__main__":
    sys.exit(main())
