"""Time and memory of one way to feed a training, measured in the process that calls."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MIB = 2**20


def peak() -> int:
    """Returns the most memory that this process has held so far, in bytes.

    Not `ru_maxrss`, with which a new process inherits its parent's.
    """
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def seconds_of(dataset: Iterable[Any]) -> tuple[float, float]:
    """Returns how long one iteration takes, from asking for it to its last batch, and the CPU time it takes.

    Feeding uses all cores, so on a machine with other work the CPU time is the fairer of the two.
    """
    started, used = time.perf_counter(), time.process_time()
    for _ in dataset:
        pass
    return time.perf_counter() - started, time.process_time() - used


def stock(folder: str, size: tuple[int, int], batch_size: int) -> Any:
    """Keras's own loader: decode, resize, shuffle, batch; float32 of 0 to 255."""
    import keras

    return keras.utils.image_dataset_from_directory(
        folder, image_size=size, batch_size=batch_size, seed=1, verbose=False
    )


def plain(folder: str, size: tuple[int, int], batch_size: int, *, cache: bool = False) -> Any:
    """A tf.data pipeline as tutorials write it, with the same result: antialiased, shuffled, in batches."""
    import tensorflow as tf

    def load(path: Any) -> Any:
        image = tf.io.decode_image(tf.io.read_file(path), channels=3, expand_animations=False)
        image = tf.image.resize(image, size, antialias=True)
        return tf.ensure_shape(image, (*size, 3)) / 255.0

    images = tf.data.Dataset.list_files(f"{folder}/*/*.jpg", seed=1).map(
        load, num_parallel_calls=tf.data.AUTOTUNE
    )
    images = images.cache() if cache else images
    return images.shuffle(1000).batch(batch_size).prefetch(tf.data.AUTOTUNE)


def ours(
    folder: str, size: tuple[int, int], batch_size: int, cache: Any = None, memory: str | None = None
) -> Any:
    """memfit's pipeline: uint8 of 0 to 255."""
    import memfit

    return memfit.images(folder, size=size, batch_size=batch_size, seed=1, cache=cache, memory=memory)


def throughput(folder: str, disk: str, size: tuple[int, int], rounds: int) -> dict[str, dict[str, float]]:
    """Returns the best seconds per epoch of each way, in turns so that all see the same machine."""
    import shutil

    best: dict[str, dict[str, float]] = {"wall": {}, "cpu": {}}

    def note(name: str, seconds: tuple[float, float]) -> None:
        for clock, taken in zip(("wall", "cpu"), seconds, strict=True):
            best[clock][name] = min(taken, best[clock].get(name, taken))

    for _ in range(rounds):
        note("keras", seconds_of(stock(folder, size, 32)))
        note("plain", seconds_of(plain(folder, size, 32)))
        note("first", seconds_of(ours(folder, size, 32)))
        in_ram = ours(folder, size, 32, cache="memory")
        note("first, kept in RAM", seconds_of(in_ram))
        note("second, from RAM", seconds_of(in_ram))
        shutil.rmtree(disk, ignore_errors=True)
        on_disk = ours(folder, size, 32, cache=disk + "/")
        note("first, kept on disk", seconds_of(on_disk))
        note("second, from disk", seconds_of(on_disk))
    return best


def memory_of(way: str, folder: str, tiny: str, size: tuple[int, int], memory: str) -> float:
    """Returns how far two epochs, shuffled and cached, raise the peak of this process, in MiB."""
    made = {
        "keras": lambda place: stock(place, size, 32).cache(),
        "plain": lambda place: plain(place, size, 32, cache=True),
        "memfit": lambda place: ours(place, size, 32, cache="auto", memory=memory),
    }[way]
    seconds_of(made(tiny))  # what TensorFlow takes once
    before = peak()
    dataset = made(folder)
    for _ in range(2):
        seconds_of(dataset)
    return (peak() - before) / MIB


def array_memory(way: str, gibibytes: float) -> float:
    """Returns the peak of a `fit` on an array, in sizes of the array, beyond what Keras takes without it."""
    import keras
    import numpy as np

    import memfit

    rows = int(gibibytes * 2**30) // (4 * 8192)
    model = keras.Sequential([keras.Input((8192,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

    def fit(x: Any) -> None:
        y = np.zeros((len(x), 1), np.float32)
        if way == "stock":
            model.fit(x, y, batch_size=64, verbose=0)
        else:
            model.fit(memfit.arrays(x, y, batch_size=64, shuffle=True), shuffle=False, verbose=0)

    fit(np.ones((128, 8192), np.float32))
    before = peak()
    x = np.ones((rows, 8192), np.float32)
    fit(x)
    return (peak() - before) / x.nbytes


def lint_seconds(folder: str, size: tuple[int, int]) -> float:
    """Returns how long linting a pipeline takes, TensorFlow being there already."""
    import memfit

    dataset = plain(folder, size, 32)
    started = time.perf_counter()
    memfit.lint(dataset)
    return time.perf_counter() - started
