"""The main job, on any machine: a network that stock Keras cannot train in a small memory, and memfit can.

Run it with `make demo`. It needs no GPU: it uses an arena, TensorFlow's own allocator on the CPU with a limit.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import memfit

MEMORY = "170MiB"
BATCH = 64
OUTPUT = Path("demo-output")


def build_model_and_data() -> tuple[Any, Any, Any]:
    """A residual network with BatchNormalization and dropout, and images with something to learn in them."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    layers = keras.layers
    inputs = keras.Input((64, 64, 3))
    x = layers.Conv2D(16, 3, padding="same", use_bias=False)(inputs)
    for _ in range(2):
        skip = x
        x = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.Conv2D(16, 3, padding="same", use_bias=False)(x)
        x = layers.Add()([skip, layers.ReLU()(layers.BatchNormalization()(x))])
    x = layers.Dropout(0.2)(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, layers.Dense(4, activation="softmax")(x))
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "sparse_categorical_crossentropy")
    random = np.random.default_rng(0)
    labels = random.integers(0, 4, 2 * BATCH)
    images = random.normal(size=(len(labels), 64, 64, 3)) + labels[:, None, None, None] * 0.25
    return model, images.astype("float32"), labels


def train(memory: str | None = None) -> tuple[list[float], Any]:
    """Trains with memfit in a memory, or with stock Keras; returns the losses of the epochs and memfit's run."""
    model, x, y = build_model_and_data()
    settings = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0}
    if memory is None:
        return model.fit(x, y, **settings).history["loss"], None
    history = memfit.fit(model, x, y, **settings, memory=memory, allow="exact")
    return history.history["loss"], history.memory


def main() -> None:
    """Shows the OOM of stock Keras, the plan and the training of memfit, and equal losses."""
    # The processes below inherit these: TensorFlow's log would hide the rest, and records go to the output.
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "MEMFIT_RUNS": str(OUTPUT.resolve() / "runs")}
    print(f"A residual network, batch {BATCH}, in {MEMORY} of memory.\n")
    print("1. Stock Keras (TensorFlow waits 10 s before it gives up) ...", flush=True)
    enough = ThreadPoolExecutor(1).submit(memfit.isolated, train, memory="4GiB")  # for 3., while 1. waits
    try:
        told = f"It fitted after all: {memfit.isolated(train, memory=MEMORY)}"
    except Exception as error:
        lines = str(error).splitlines()
        told = f"{type(error).__name__}: {next((line.strip() for line in lines if 'OOM' in line), lines[0])}"
    print(f"   {told[:110]} ...\n")
    print(f'2. memfit.fit(model, x, y, batch_size={BATCH}, memory="{MEMORY}", allow="exact") ...', flush=True)
    losses, run = memfit.isolated(train, MEMORY, memory=MEMORY)
    print("   " + repr(run).replace("\n", "\n   ") + "\n")
    print("3. Stock Keras again, with as much memory as it wants ...", flush=True)
    for name, told in (("stock: ", enough.result()[0]), ("memfit:", losses)):
        print(f"   loss of the epochs, {name} {'  '.join(f'{loss:.6f}' for loss in told)}")
    page = OUTPUT / "report.html"
    report = [sys.executable, "-m", "memfit", "report", "--output", str(page), "--force"]
    subprocess.run(report, check=True, stdout=subprocess.DEVNULL)
    print(f"\nThe whole run as an HTML page: {page}")


if __name__ == "__main__":
    main()
