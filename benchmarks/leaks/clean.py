"""Twenty loops that do not leak, though memory grows at first, now and then, or by a little."""

import collections
import functools
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from leaks.loops import batch, epochs_of, network, turns


def _fit(seconds: float, **arguments: Any) -> None:
    x, y = batch(2048)
    callbacks = [*arguments.pop("callbacks", []), epochs_of(seconds)]
    arguments = {"x": x, "y": y, **arguments}
    network().fit(**arguments, epochs=10**6, verbose=0, callbacks=callbacks)


def plain_fit(seconds: float) -> None:
    """A training as it comes."""
    _fit(seconds)


def fit_with_everything(seconds: float) -> None:
    """Validation, checkpoints, early stopping, a log file."""
    with tempfile.TemporaryDirectory() as folder:
        callbacks = [
            keras.callbacks.ModelCheckpoint(str(Path(folder, "{epoch}.weights.h5")), save_weights_only=True),
            keras.callbacks.CSVLogger(str(Path(folder, "log.csv"))),
            keras.callbacks.EarlyStopping(patience=10**6),
        ]
        _fit(seconds, validation_split=0.2, callbacks=callbacks)


def fit_from_a_dataset(seconds: float) -> None:
    """tf.data with a cache that fills up in the first epoch, and a shuffle buffer that fills at every start."""
    dataset = tf.data.Dataset.from_tensor_slices(batch(4096)).cache().shuffle(2048).batch(64).prefetch(2)
    _fit(seconds, x=dataset, y=None)


def fit_from_a_generator(seconds: float) -> None:
    """A Python generator."""

    def samples() -> Any:
        while True:
            yield batch(64)

    _fit(seconds, x=samples(), y=None, steps_per_epoch=50)


def predict_in_a_loop(seconds: float) -> None:
    """`model.predict` again and again."""
    model, (x, _) = network(), batch()
    for _ in turns(seconds):
        model.predict(x, verbose=0)


def call_in_a_loop(seconds: float) -> None:
    """`model(x)` again and again, with floats logged."""
    model, (x, _) = network(), batch()
    means = []
    for _ in turns(seconds):
        means.append(float(tf.reduce_mean(model(x))))


def loop_with_a_tape(seconds: float) -> None:
    """A training loop of one's own, in a tf.function."""
    model, (x, y) = network(), batch()

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)
        return loss

    losses = []
    for _ in turns(seconds):
        losses.append(step(x, y).numpy())


def two_networks(seconds: float) -> None:
    """A generator and a critic, eagerly."""
    generator, critic, (x, _) = network(outputs=64), network(outputs=1), batch()
    for _ in turns(seconds):
        with tf.GradientTape(persistent=True) as tape:
            made = generator(x)
            loss = tf.reduce_mean(critic(made)) - tf.reduce_mean(critic(x))
        for model in (generator, critic):
            variables = model.trainable_variables
            model.optimizer.apply(tape.gradient(loss, variables), variables)


def shuffle_buffer(seconds: float) -> None:
    """A large shuffle buffer, filled while the first batches come."""
    dataset = tf.data.Dataset.range(10**9).map(lambda number: tf.fill((64,), number))
    batches = iter(dataset.shuffle(20_000).batch(64))
    for _ in turns(seconds):
        tf.reduce_sum(next(batches))


def cache_that_fills_up(seconds: float) -> None:
    """Samples are kept when they are first seen, and there is an end of them."""
    cache: dict[int, Any] = {}
    model = network()
    for number in turns(seconds):
        key = number % 200
        if key not in cache:
            cache[key] = np.full((64, 64), key, "float32")
        model(cache[key])


@functools.lru_cache(maxsize=256)
def features(number: int) -> Any:
    """Returns features that are cached within a bound."""
    return np.full((64, 64), number, "float32")


def cache_with_a_bound(seconds: float) -> None:
    """A cache that forgets."""
    model = network()
    for number in turns(seconds):
        model(features(number))


def replay_with_a_bound(seconds: float) -> None:
    """A replay memory that is cut."""
    memory: Any = collections.deque(maxlen=300)
    model = network()
    for number in turns(seconds):
        state = np.full((64, 64), number, "float32")
        memory.append((state, model(state)))


def emptied_every_epoch(seconds: float) -> None:
    """Outputs of an epoch are collected, and dropped at its end."""
    model, (x, _) = network(), batch()
    outputs = []
    for number in turns(seconds):
        outputs.append(model(x))
        if number % 97 == 96:
            tf.concat(outputs, 0)
            outputs.clear()


def gathered_and_freed(seconds: float) -> None:
    """Every evaluation gathers its outputs in a list of its own."""
    model, (x, _) = network(), batch()

    def evaluate() -> Any:
        outputs = []
        for _ in range(80):
            outputs.append(np.array(model(x)))
        return float(np.concatenate(outputs).mean())

    for _ in turns(seconds):
        evaluate()


def few_shapes(seconds: float) -> None:
    """Buckets: traced once for each of some lengths."""
    model = network()
    call = tf.function(lambda x: model(x, training=False))
    for number in turns(seconds):
        call(np.ones((8 * (1 + number % 12), 64), "float32"))


def fixed_graph(seconds: float) -> None:
    """A graph of TensorFlow 1 that is built before the loop."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, (64, 64))
        loss = tf.reduce_mean(x @ x)
        for _ in turns(seconds):
            session.run(loss, {x: np.ones((64, 64))})


def large_temporaries(seconds: float) -> None:
    """Arrays of changing sizes, each freed at once."""
    drawn = np.random.default_rng(0)
    for _ in turns(seconds):
        rows = drawn.normal(size=(int(drawn.integers(100, 5000)), 64))
        (rows @ rows.T[:, :64]).sum()


def garbage_in_cycles(seconds: float) -> None:
    """Objects that refer to each other: Python frees them when it collects."""
    model, (x, _) = network(), batch()
    for _ in turns(seconds):
        node: dict[str, Any] = {"output": model(x)}
        node["self"] = node


def slow_start(seconds: float) -> None:
    """Data is loaded piece by piece at the beginning, and used from then on."""
    model, pieces = network(), []
    for _ in turns(seconds / 4):
        pieces.append(np.array(model(np.ones((256, 64), "float32"))))
    for number in turns(3 * seconds / 4):
        model(np.resize(pieces[number % len(pieces)], (64, 64)))


def logs_of_every_step(seconds: float) -> None:
    """A few numbers of every step are logged, as a training of ten steps a second does."""
    import time

    model, (x, y) = network(), batch()
    history: dict[str, list[float]] = {"loss": [], "seconds": []}
    for _ in turns(seconds):
        history["loss"].append(float(model.train_on_batch(x, y)))
        history["seconds"].append(time.monotonic())
        time.sleep(0.01)


CLEAN = [
    plain_fit,
    fit_with_everything,
    fit_from_a_dataset,
    fit_from_a_generator,
    predict_in_a_loop,
    call_in_a_loop,
    loop_with_a_tape,
    two_networks,
    shuffle_buffer,
    cache_that_fills_up,
    cache_with_a_bound,
    replay_with_a_bound,
    emptied_every_epoch,
    gathered_and_freed,
    few_shapes,
    fixed_graph,
    large_temporaries,
    garbage_in_cycles,
    slow_start,
    logs_of_every_step,
]
