"""What runs on the device: four small trainings, with stock Keras and with memfit, and what came of them.

Between them they have what memory is spent on.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

_STEPS = 3
_Network: TypeAlias = tuple[Any, Any, Any, int]  # inputs, outputs, optimizer, batch size
_PEAK_STEPS = 8
_ROUNDS = 3
_TIMES = 10  # how often the samples are trained in a round whose time is taken
_ONE_EPOCH: dict[str, Any] = {"epochs": 1, "shuffle": False, "verbose": 0}


@dataclass(frozen=True)
class Training:
    """A compiled model and arrays of some batches."""

    model: Any
    x: Any
    y: Any
    batch_size: int


def build(name: str) -> Training:
    """Builds a training by its name, in the process that runs it; always with the same numbers."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(7)
    inputs, outputs, optimizer, batch_size = NETWORKS[name](keras)
    model = keras.Model(inputs, outputs)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    random = np.random.default_rng(7)
    shape = (_STEPS * batch_size, *inputs.shape[1:])
    whole = "int" in str(inputs.dtype)
    x = random.integers(0, 1000, shape) if whole else random.normal(size=shape).astype("float32")
    return Training(model, x, random.integers(0, 10, _STEPS * batch_size), batch_size)


def _convolutions(keras: Any) -> _Network:
    layers = keras.layers
    inputs = x = keras.Input((32, 32, 3))
    for filters in (32, 32, 64, 64):
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Dropout(0.3)(layers.GlobalAveragePooling2D()(x))
    return inputs, layers.Dense(10)(x), keras.optimizers.SGD(0.01, momentum=0.9), 64


def _transformer(keras: Any) -> _Network:
    layers = keras.layers
    inputs = keras.Input((96,), dtype="int32")
    x = layers.Embedding(1000, 128)(inputs)
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 32, dropout=0.1)(x, x))
        inner = layers.Dense(128)(layers.Dense(512, "gelu")(x))
        x = layers.LayerNormalization()(x + layers.Dropout(0.1)(inner))
    outputs = layers.Dense(10)(layers.GlobalAveragePooling1D()(x))
    return inputs, outputs, keras.optimizers.SGD(0.05, momentum=0.9), 48


def _recurrent(keras: Any) -> _Network:
    layers = keras.layers
    inputs = keras.Input((48,), dtype="int32")
    x = layers.Embedding(1000, 64, mask_zero=True)(inputs)
    x = layers.LSTM(96)(layers.LSTM(96, return_sequences=True)(x))
    return inputs, layers.Dense(10)(x), keras.optimizers.Adam(1e-3), 64


def _dense(keras: Any) -> _Network:
    layers = keras.layers
    inputs = x = keras.Input((1024,))
    for _ in range(3):
        x = layers.Dropout(0.2)(layers.Dense(1024, "relu")(x))
    return inputs, layers.Dense(10)(x), keras.optimizers.AdamW(1e-3), 512


NETWORKS: dict[str, Callable[[Any], _Network]] = {
    "convolutions": _convolutions,
    "transformer": _transformer,
    "recurrent": _recurrent,
    "dense": _dense,
}


@dataclass(frozen=True)
class Predicted:
    """What an estimate says of a training, in bytes.

    Attributes:
        peak: The peak of a step.
        needed: What a step needs.
        half: What training needs with half of the activations less.
        source: Where the figures come from.
    """

    peak: int
    needed: int
    half: int
    source: str


@dataclass(frozen=True)
class Trained:
    """What came of a training.

    Attributes:
        loss: The mean loss of its epoch.
        variables: The path and the values of every variable, the optimizer's included.
        plan: How its steps were planned to be computed.
        shortages: What memfit says of each time that memory ran out.
    """

    loss: float
    variables: tuple[tuple[str, Any], ...]
    plan: str = ""
    shortages: tuple[str, ...] = ()


def predict(names: list[str]) -> dict[str, Predicted]:
    """Estimates trainings."""
    from memfit.estimation.estimating import estimate as make_estimate

    predicted = {}
    for name in names:
        training = build(name)
        estimate = make_estimate(training.model, training.batch_size, data=(training.x, training.y))
        needed = int(estimate.prediction.needed)
        half = int(estimate.needed) - int(estimate.breakdown["activations"]) // 2
        predicted[name] = Predicted(int(estimate.peak), needed, half, estimate.source)
    return predicted


def measure_peaks(name: str) -> list[int]:
    """Measures the peaks of some steps of stock Keras, in bytes, but for the first, which is unlike the others."""
    from memfit.budgets.peaks import device_name, take_peak

    training = build(name)
    batch = training.x[: training.batch_size], training.y[: training.batch_size]
    peaks = []
    for _ in range(_PEAK_STEPS):
        take_peak(device_name())
        training.model.train_on_batch(*batch)
        peaks.append(int(take_peak(device_name())))
    return peaks[1:]


def train_stock(name: str) -> Trained:
    """Trains with stock Keras."""
    _compute_alike()
    training = build(name)
    history = training.model.fit(training.x, training.y, batch_size=training.batch_size, **_ONE_EPOCH)
    return Trained(history.history["loss"][-1], _variables(training.model))


def train_planned(name: str, memory: int | str) -> Trained:
    """Trains with an exact plan for so much memory."""
    from memfit.planning.planning import plan as make_plan
    from memfit.training.fitting import fit

    _compute_alike()
    training = build(name)
    data = (training.x, training.y)
    plan = make_plan(training.model, training.batch_size, memory=memory, allow="exact", data=data)
    history = fit(training.model, training.x, training.y, plan=plan, **_ONE_EPOCH)
    shortages = tuple(str(event) for event in history.memory.events if event.phase)
    return Trained(history.history["loss"][-1], _variables(training.model), str(plan.recipe), shortages)


def train_unplanned(name: str) -> Trained:
    """Trains as if all of it would fit, whatever there is: the guard has to help where it does not."""
    return train_planned(name, "1TiB")


def measure_speed(name: str) -> tuple[float, float]:
    """Measures the seconds of a step of stock Keras and of memfit, the least of some rounds in turn."""
    import numpy as np

    from memfit.planning.planning import plan as make_plan
    from memfit.training.fitting import fit

    training = build(name)
    plan = make_plan(training.model, training.batch_size, memory="1TiB")
    x, y = np.concatenate([training.x] * _TIMES), np.concatenate([training.y] * _TIMES)
    seconds: tuple[list[float], list[float]] = ([], [])
    for round_number in range(_ROUNDS + 1):
        for way, taken in enumerate(seconds):
            begin = time.perf_counter()
            if way == 0:
                training.model.fit(x, y, batch_size=training.batch_size, verbose=0)
            else:
                fit(training.model, x, y, plan=plan, verbose=0)
            if round_number:  # the first one traces
                taken.append((time.perf_counter() - begin) / (_TIMES * _STEPS))
    return min(seconds[0]), min(seconds[1])


def _compute_alike() -> None:
    """Lets sums be the same to the last bit: a GPU's kernels add up in any order, and so does a graph optimiser.

    TensorFlow's dependency optimiser makes another graph of a step with segments than of stock's, and gradients of
    a BatchNormalization's gamma came out with another last bit. Without it they are the same.
    """
    import tensorflow as tf

    tf.config.experimental.enable_op_determinism()
    tf.config.optimizer.set_experimental_options({"dependency_optimization": False})


def _variables(model: Any) -> tuple[tuple[str, Any], ...]:
    import numpy as np

    variables = (*model.variables, *model.optimizer.variables)
    return tuple((variable.path, np.asarray(variable.value)) for variable in variables)
