"""What many trials leave in the process that starts them: its memory after one, and after a hundred.

The same trainings are also run one after the other in one process, cleared as people do it (`clear_session` and
`gc.collect`), for comparison.

    python benchmarks/trials/parent_memory.py
"""

import gc
import sys
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

import memfit
from machine import SMOKE, isolated, write

COUNT = 1 if SMOKE else 100


def train(units: int) -> float:
    """Trains a small network, as a search does."""
    import keras
    import numpy as np

    layers = [keras.layers.Dense(units, activation="swish"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((32,)), *layers])
    model.compile("adam", "mse")
    x = np.ones((64, 32), "float32")
    return float(model.fit(x, x[:, :1], verbose=0).history["loss"][-1])


def resident() -> int:
    """Returns the memory of this process."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def measure(count: int, memory: str | None = None) -> dict[str, float]:
    """Returns this process's MiB after one trial and after as many more."""
    assert memfit.trials(train, [512], memory=memory, parallel=1)[0].status == "done"
    first = resident()
    results = memfit.trials(train, [512 + number for number in range(count)], memory=memory, parallel=1)
    assert {trial.status for trial in results} == {"done"}
    return {"after_1": first / 2**20, "after_all": resident() / 2**20, "seconds": results.seconds}


def measure_in_one_process(count: int) -> dict[str, float]:
    """Returns the MiB of a process that trains one network after the other and clears behind each."""
    import keras

    first = 0
    for number in range(count + 1):
        train(512 + number)
        keras.backend.clear_session()
        gc.collect()
        first = first or resident()
    return {"after_1": first / 2**20, "after_all": resident() / 2**20}


def main() -> None:
    """Measures, prints and writes the figures."""
    figures = {"trials": measure(COUNT), "one process": isolated(measure_in_one_process, COUNT)}
    for name, told in figures.items():
        ratio = told["after_all"] / told["after_1"]
        print(
            f"{name}: {told['after_1']:.1f} MiB after 1, {told['after_all']:.1f} after {COUNT} more ({ratio:.3f}x)"
        )
    write("trials", {"count": COUNT, **figures})


if __name__ == "__main__":
    main()
