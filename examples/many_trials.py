"""A small search: each training in its own process, in parallel as far as the memory allows.

A trial that runs out of memory is a row in the table, and the search continues.
"""

import os

import memfit

SMALL = "EXAMPLE_SMALL" in os.environ


def train(setting: dict[str, int]) -> dict[str, list[float]]:
    """Trains one setting; what it returns comes back from its process."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    random = np.random.default_rng(0)
    x = random.normal(size=(256, 128)).astype("float32")
    y = (x[:, :1] > 0).astype("float32")
    layers = [keras.layers.Dense(setting["units"], "relu"), keras.layers.Dense(1, "sigmoid")]
    model = keras.Sequential([keras.Input((128,)), *layers])
    model.compile("adam", "binary_crossentropy")
    return model.fit(x, y, epochs=3, verbose=0).history


def main() -> None:
    """Tries some widths; the last one is too wide for the memory."""
    widths = [16, 64] if SMALL else [16, 64, 256, 1_000_000]
    settings = [{"units": units} for units in widths]
    results = memfit.trials(train, settings, memory="400MiB", parallel=1 if SMALL else None)
    print(results)
    done = [trial for trial in results if trial.status == "done"]
    best = min(done, key=lambda trial: trial.value["loss"][-1])
    print("best:", best.setting, best.value["loss"][-1])


if __name__ == "__main__":
    main()
