"""Twenty loops that leak, as people report them; the line that lets memory grow is marked `# LEAK`.

Each is a function of the seconds it runs for, small enough to read beside the report it stands for.
"""

import functools
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from leaks.loops import batch, epochs_of, network, turns


def list_of_losses(seconds: float) -> None:
    """Losses are collected as tensors, to be plotted later (tensorflow#32276 and many more)."""
    model, (x, y) = network(), batch(16384)
    losses = []
    for _ in turns(seconds):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2, axis=-1)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)
        losses.append(loss)  # LEAK


def predictions_kept(seconds: float) -> None:
    """`model(x)` in a loop, with every result kept (tensorflow#33030)."""
    model, (x, _) = network(), batch()
    results: dict[int, Any] = {}
    for number in turns(seconds):
        results[number] = model(x, training=False)  # LEAK


class KeepsPredictions(keras.callbacks.Callback):
    """Keeps every prediction, to look at them after the training."""

    def __init__(self, x: Any) -> None:
        super().__init__()
        self.x, self.seen = x, []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(np.array(self.model(self.x)))  # LEAK


def callback_that_appends(seconds: float) -> None:
    """Memory grows with every epoch because a callback keeps what it predicts (tensorflow#34876)."""
    model, (x, y) = network(), batch(2048)
    model.fit(x, y, epochs=10**6, verbose=0, callbacks=[KeepsPredictions(x), epochs_of(seconds)])


def python_number_retraced(seconds: float) -> None:
    """A Python number as an argument: one graph for each value (tensorflow#29027)."""
    weights = tf.Variable(tf.ones((64, 64)))

    @tf.function
    def step(x: Any, number: int) -> Any:
        for _ in range(8):
            x = tf.tanh(x @ weights) * number
        return x

    x = tf.ones((8, 64))
    for number in turns(seconds):
        step(x, number)  # LEAK


def new_shapes_retraced(seconds: float) -> None:
    """Texts of every length: one graph for each shape (tensorflow#124972, 38002)."""
    model = network()
    call = tf.function(lambda x: model(x, training=False))
    for number in turns(seconds):
        rows = np.ones((number + 1, 64), "float32")
        call(rows)  # LEAK


def lambdas_that_keep(seconds: float) -> None:
    """Callbacks for later that close over the batch they were made in."""
    model, (x, _) = network(), batch()

    def remember(handlers: list[Any], output: Any) -> None:
        handlers.append(lambda: output + 1)  # LEAK

    handlers: list[Any] = []
    for _ in turns(seconds):
        remember(handlers, model(x))


def growing_graph(seconds: float) -> None:
    """Ops are added to the graph in the loop that runs it (the classic of TensorFlow 1)."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, (16, 16))
        loss = tf.reduce_mean(x @ x)
        for _ in turns(seconds):
            session.run(tf.square(loss * 2.0), {x: np.ones((16, 16))})  # LEAK


def iterators_never_closed(seconds: float) -> None:
    """A new iterator for every batch, and none of them let go (tensorflow#27414)."""
    x, y = batch()
    options = tf.data.Options()
    options.autotune.enabled = False  # else four threads for each, until no more can be had
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat().shuffle(512).batch(64).with_options(options)
    iterators = []
    for _ in turns(seconds):
        iterators.append(iter(dataset))  # LEAK
        for _ in range(40):
            next(iterators[-1])


class Loader:
    """Makes datasets, and remembers them by their number."""

    def __init__(self) -> None:
        self.datasets: dict[int, Any] = {}

    def load(self, number: int) -> Any:
        if number not in self.datasets:
            rows = np.full((512, 64), number, "float32")
            self.datasets[number] = tf.data.Dataset.from_tensor_slices(rows).batch(32)  # LEAK
        return self.datasets[number]


def datasets_in_a_dict(seconds: float) -> None:
    """A dataset for every file, kept for the next time, which never comes (tensorflow#20436)."""
    loader = Loader()
    for number in turns(seconds):
        for rows in loader.load(number).take(1):
            tf.reduce_sum(rows)


def array_that_is_extended(seconds: float) -> None:
    """`np.concatenate` onto what there is, at every step."""
    model, (x, _) = network(), batch(64)
    history = np.zeros((0, 16), "float32")
    for _ in turns(seconds):
        history = np.concatenate([history, np.array(model(x))])  # LEAK


@functools.cache
def features(number: int) -> Any:
    """Returns features that are cached without a bound."""
    return np.full((64, 64), number, "float32")


def cache_without_a_bound(seconds: float) -> None:
    """A cache of features by a key that never comes twice."""
    model = network()
    for number in turns(seconds):
        model(features(number))  # LEAK


class CachingSequence(keras.utils.PyDataset):
    """Caches what it loads by epoch and batch: a key that never comes twice."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[Any, Any] = {}
        self.epoch = 0

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        key = (self.epoch, index)
        if key not in self.cache:
            self.cache[key] = batch()  # LEAK
        return self.cache[key]

    def on_epoch_end(self) -> None:
        self.epoch += 1


def sequence_that_caches(seconds: float) -> None:
    """RAM goes up from epoch to epoch with a `Sequence` of one's own."""
    sequence = CachingSequence()
    network().fit(sequence, epochs=10**6, verbose=0, callbacks=[epochs_of(seconds)])


class Agent:
    """Learns from what it remembers."""

    def __init__(self) -> None:
        self.model, self.memory = network(), []

    def remember(self, state: Any, action: Any) -> None:
        self.memory.append({"state": state, "action": action})  # LEAK

    def act(self, state: Any) -> Any:
        return self.model(state[None])[0]


def replay_without_a_bound(seconds: float) -> None:
    """Reinforcement learning with a replay memory that is never cut."""
    agent = Agent()
    for number in turns(seconds):
        state = np.full(64, number, "float32")
        agent.remember(np.tile(state, 16), agent.act(state))


def models_kept(seconds: float) -> None:
    """A search that keeps every model it has tried."""
    tried = []
    for number in turns(seconds):
        model = network(outputs=8 + number % 3)
        tried.append((number, model))  # LEAK


def models_trained_and_deleted(seconds: float) -> None:
    """Models that are trained, deleted and cleared, and stay all the same (tensorflow#33030, keras#13118)."""
    for _ in turns(seconds):
        model, (x, y) = network(), batch(32)
        model.fit(x, y, verbose=0)  # LEAK
        del model
        keras.backend.clear_session()


class Recording(keras.layers.Layer):
    """Keeps its activations, to look at them."""

    def __init__(self) -> None:
        super().__init__()
        self.activations = []

    def call(self, x: Any) -> Any:
        self.activations.append(x)  # LEAK
        return x


def layer_that_keeps(seconds: float) -> None:
    """A layer that stores what it saw, in a model that runs eagerly."""
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64), Recording()])
    model.compile("sgd", "mse", run_eagerly=True)
    x, _ = batch()
    for _ in turns(seconds):
        model.train_on_batch(x, x)


def log(gradients: Any, seen: list[Any] = []) -> None:  # noqa: B006 (the leak)
    """Logs, into a default argument."""
    seen.append([np.array(gradient) for gradient in gradients])  # LEAK


def default_argument(seconds: float) -> None:
    """A list as a default argument lives as long as its function."""
    model, (x, y) = network(), batch()
    for _ in turns(seconds):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        log(tape.gradient(loss, model.trainable_variables))


def tape_around_the_loop(seconds: float) -> None:
    """One tape around the whole loop: it keeps every activation (tensorflow#45016)."""
    weights, x = tf.Variable(tf.ones((64, 64)) / 64), tf.ones((256, 64))
    with tf.GradientTape(persistent=True):
        for _ in turns(seconds):
            tf.tanh(x @ weights)  # LEAK


def functions_made_in_a_loop(seconds: float) -> None:
    """`tf.function` inside of the loop, and each of them kept (tensorflow#50379)."""
    weights, functions = tf.Variable(tf.ones((64, 64))), {}
    for number in turns(seconds):
        functions[number] = tf.function(lambda x: tf.tanh(x @ weights))  # LEAK
        functions[number](tf.ones((8, 64)))


def errors_that_are_kept(seconds: float) -> None:
    """Exceptions are collected, and with each the variables of the function that failed."""
    model, failed = network(), []

    def predict(number: int) -> Any:
        rows = np.full((256, 64), number, "float32")
        if model(rows).shape[0]:
            raise ValueError(number)

    for number in turns(seconds):
        try:
            predict(number)
        except ValueError as error:
            failed.append(error)  # LEAK


LEAKING = [
    list_of_losses,
    predictions_kept,
    callback_that_appends,
    python_number_retraced,
    new_shapes_retraced,
    lambdas_that_keep,
    growing_graph,
    iterators_never_closed,
    datasets_in_a_dict,
    array_that_is_extended,
    cache_without_a_bound,
    sequence_that_caches,
    replay_without_a_bound,
    models_kept,
    models_trained_and_deleted,
    layer_that_keeps,
    default_argument,
    tape_around_the_loop,
    functions_made_in_a_loop,
    errors_that_are_kept,
]
